package xds

import (
	"fmt"
	"path"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoverygrpc "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Names of the secrets with which Envoys connect to the control plane and to routers, of the ones that they show to
// clients, and of the ones with which they connect to engines.
const (
	caSecret        = "stator-ca"
	clientSecret    = "stator-client"
	gatewayCASecret = "stator-gateway-ca"
	gatewaySecret   = "stator-gateway"
	engineCASecret  = "stator-engine-ca"
	engineSecret    = "stator-engine"
)

// The names that certificates of servers have by default. They do not depend on addresses.
const (
	DefaultXDSServerName     = "stator-xds"
	DefaultExtProcServerName = "stator-extproc"
)

// PEMFiles are the certificates of an Envoy: paths of PEM files, as that Envoy sees them.
type PEMFiles struct {
	// CA has the authorities of those at the other end: the control plane and routers, or clients.
	CA string
	// Cert and Key are the certificate of the Envoy and its key.
	Cert, Key string
}

// SecretFiles returns the content of the files in a folder of secrets, by name. They refer to the files of p. Envoy reads
// certificates again only if they are such secrets; those in a bootstrap are read once.
func SecretFiles(p PEMFiles) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, secret := range pemSecrets(p, caSecret, clientSecret) {
		var pack packer
		resource := pack.pack(secret)
		if pack.err != nil {
			return nil, pack.err
		}
		response := &discoverygrpc.DiscoveryResponse{Resources: []*anypb.Any{resource}}
		text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(response)
		if err != nil {
			return nil, fmt.Errorf("secret %s: %w", secret.Name, err)
		}
		files[secret.Name+".json"] = text
	}
	return files, nil
}

// pemSecrets returns the secrets that refer to the files of p. A file that p does not name has no secret.
func pemSecrets(p PEMFiles, ca, cert string) (out []*tlsv3.Secret) {
	if p.CA != "" {
		out = append(out, &tlsv3.Secret{Name: ca, Type: &tlsv3.Secret_ValidationContext{
			ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inFile(p.CA)},
		}})
	}
	if p.Cert != "" {
		out = append(out, &tlsv3.Secret{Name: cert, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			CertificateChain: inFile(p.Cert), PrivateKey: inFile(p.Key),
		}}})
	}
	return out
}

func inFile(name string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: name}}
}

// secretTimeout bounds how long Envoy waits for a secret at its start. The file is there.
const secretTimeout = 2 * time.Second

// secretIn refers to a secret in a folder. Envoy watches the folder, and the folders of the PEM files.
func secretIn(folder, name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{
		ResourceApiVersion:  corev3.ApiVersion_V3,
		InitialFetchTimeout: seconds(secretTimeout),
		ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{PathConfigSource: &corev3.PathConfigSource{
			Path: path.Join(folder, name+".json"),
		}},
	}}
}

// gatewayTLS returns the transport of the listeners; nil without a certificate. The secrets come from this package's server and name
// files, so no key leaves the host of the Envoy.
func gatewayTLS(files PEMFiles, p *packer) *corev3.TransportSocket {
	if files.Cert == "" {
		return nil
	}
	c := &tlsv3.DownstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
		AlpnProtocols:                  []string{"h2", "http/1.1"},
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{served(gatewaySecret)},
	}}
	if files.CA != "" {
		c.RequireClientCertificate = wrapperspb.Bool(true)
		c.CommonTlsContext.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContextSdsSecretConfig{
			ValidationContextSdsSecretConfig: served(gatewayCASecret),
		}
	}
	return &corev3.TransportSocket{
		Name: tlsSocket, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: p.pack(c)},
	}
}

// served refers to a secret of this package's server.
func served(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: adsSource()}
}

// dnsName matches the certificates for a DNS name.
func dnsName(name string) *tlsv3.SubjectAltNameMatcher {
	return &tlsv3.SubjectAltNameMatcher{SanType: tlsv3.SubjectAltNameMatcher_DNS, Matcher: exactly(name)[0]}
}

// tlsSocket is the name of Envoy's transport with TLS.
const tlsSocket = "envoy.transport_sockets.tls"

// clientTLS returns the transport of a cluster whose servers ask for a certificate. The certificate of a server must be
// for serverName.
func clientTLS(folder, serverName string, p *packer) *corev3.TransportSocket {
	c := verified(serverName, secretIn(folder, caSecret))
	c.AlpnProtocols = []string{"h2"}
	c.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{secretIn(folder, clientSecret)}
	return upstreamTLS(serverName, tlsv3.TlsParameters_TLSv1_3, c, p)
}

// engineTLS returns the transport of pools. The secrets come from this package's server and name files, so no key leaves the host of the
// Envoy. The Envoy of an operator does not get them, and reads the files at its start alone.
func (s *Settings) engineTLS(p *packer) *corev3.TransportSocket {
	files := s.EngineTLS
	c := verified(s.EngineServerName, served(engineCASecret))
	if files.Cert != "" {
		c.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{served(engineSecret)}
	}
	if s.ownEnvoy {
		c = verifiedByFile(s.EngineServerName, files.CA)
		if files.Cert != "" {
			c.TlsCertificates = []*tlsv3.TlsCertificate{{CertificateChain: inFile(files.Cert), PrivateKey: inFile(files.Key)}}
		}
	}
	return upstreamTLS(s.EngineServerName, tlsv3.TlsParameters_TLSv1_2, c, p)
}

// verified returns settings with which a server needs a certificate for a name, of an authority in a secret.
func verified(serverName string, ca *tlsv3.SdsSecretConfig) *tlsv3.CommonTlsContext {
	return &tlsv3.CommonTlsContext{ValidationContextType: &tlsv3.CommonTlsContext_CombinedValidationContext{
		CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
			// Every certificate of the CA would do without this, also another Envoy's certificate.
			DefaultValidationContext: &tlsv3.CertificateValidationContext{
				MatchTypedSubjectAltNames: []*tlsv3.SubjectAltNameMatcher{dnsName(serverName)},
			},
			ValidationContextSdsSecretConfig: ca,
		},
	}}
}

// verifiedByFile is verified with an authority in a file.
func verifiedByFile(serverName, caFile string) *tlsv3.CommonTlsContext {
	return &tlsv3.CommonTlsContext{ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{
		// Without an authority Envoy would accept every certificate.
		ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa: inFile(caFile), MatchTypedSubjectAltNames: []*tlsv3.SubjectAltNameMatcher{dnsName(serverName)},
		},
	}}
}

// upstreamTLS returns the transport of a cluster. By default Envoy's clients speak TLS 1.2 at most.
func upstreamTLS(serverName string, least tlsv3.TlsParameters_TlsProtocol, c *tlsv3.CommonTlsContext, p *packer) *corev3.TransportSocket {
	c.TlsParams = &tlsv3.TlsParameters{TlsMinimumProtocolVersion: least, TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3}
	return &corev3.TransportSocket{Name: tlsSocket, ConfigType: &corev3.TransportSocket_TypedConfig{
		TypedConfig: p.pack(&tlsv3.UpstreamTlsContext{Sni: serverName, CommonTlsContext: c}),
	}}
}
