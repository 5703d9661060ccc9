package config

import "github.com/stator-project/stator/internal/fleet"

// EngineTLS has the certificates of connections to engines. The files are in PEM, and every part of Stator and every Envoy has them at
// these paths. They are read again when they change: by Envoys when they are moved into their folder, and by the other parts within a
// second of the next connection. New connections then use them.
type EngineTLS struct {
	// CAFile is a file with the authorities that may have signed the certificates of engines. It turns TLS on. The authorities of the
	// system are in a file such as /etc/ssl/certs/ca-certificates.crt.
	CAFile string `yaml:"caFile" file:"relative" default:"no TLS"`
	// CertFile is a file with the certificate that engines are shown, for engines that ask for one.
	CertFile string `yaml:"certFile" file:"relative" default:"engines are shown no certificate"`
	// KeyFile is a file with the private key of certFile.
	KeyFile string `yaml:"keyFile" file:"relative" default:"none"`
	// ServerName is the DNS name that the certificate of every engine must have, whatever its address.
	ServerName string `yaml:"serverName"`
	// Except lists the engines that are reached without TLS, for a fleet on its way to TLS: IP:PORT, an IP, a network such as 10.0.0.0/8,
	// and :PORT or :PORT-PORT for the ports of all hosts, or after a network. At most 256.
	Except []string `yaml:"except" default:"none"`
}

// Excepted returns the addresses of Except, which have been checked.
func (t *EngineTLS) Excepted() fleet.Addresses {
	set, _ := fleet.ParseAddresses(t.Except)
	return set
}

// maxExcept bounds the entries with which each connection to an engine is compared.
const maxExcept = 256

// engineTLS checks the certificates of connections to engines.
func (v *validator) engineTLS(t *EngineTLS) {
	v.is((t.CertFile == "") == (t.KeyFile == ""), "engineTLS.keyFile", "and engineTLS.certFile need each other")
	v.is(t.CAFile != "" || t.CertFile == "", "engineTLS.certFile", "has no effect until engineTLS.caFile is set")
	_, err := fleet.ParseAddresses(t.Except)
	v.is(err == nil, "engineTLS.except", "has %v", err)
	v.is(len(t.Except) <= maxExcept, "engineTLS.except", "must have at most %d entries: use networks or ranges of ports", maxExcept)
	v.is(t.CAFile != "" || len(t.Except) == 0, "engineTLS.except", "has no effect until engineTLS.caFile is set")
	_, _, isName := fleet.SplitName(t.ServerName + ":1")
	v.is(isName, "engineTLS.serverName", "is %q: use a DNS name that the certificates of all engines have", t.ServerName)
}
