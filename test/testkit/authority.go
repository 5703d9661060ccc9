package testkit

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority is a certificate authority of one test. Its files are in PEM, in a folder that ends with the test.
type Authority struct {
	t    testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	next int64         // serial number of the next certificate
	ends time.Duration // from now until the end of the next certificate
}

// NewAuthority makes an authority.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()

	a := &Authority{t: t, dir: t.TempDir(), next: 1, ends: time.Hour}
	a.cert = &x509.Certificate{
		Subject: pkix.Name{CommonName: "authority of " + t.Name()},
		IsCA:    true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.Renew()
	return a
}

// Renew replaces the authority's own certificate and key. Certificates that were issued before are no longer of this
// authority.
func (a *Authority) Renew() {
	a.t.Helper()

	a.key = nil
	a.key = a.write("ca", a.cert)
}

// CA returns the file of the authority's own certificate.
func (a *Authority) CA() string { return filepath.Join(a.dir, "ca.crt") }

// Issue writes a certificate and its key, for servers and for clients, and returns their files. The certificate is
// for name and for the IP addresses. A further call with the same name replaces the files.
func (a *Authority) Issue(name string, addresses ...string) (cert, key string) {
	a.t.Helper()

	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, text := range addresses {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(text))
	}
	a.write(name, template)
	return filepath.Join(a.dir, name+".crt"), filepath.Join(a.dir, name+".key")
}

// IssueExpired is Issue for a certificate whose time has passed.
func (a *Authority) IssueExpired(name string) (cert, key string) {
	a.t.Helper()

	a.ends = -time.Minute
	defer func() { a.ends = time.Hour }()
	return a.Issue(name)
}

// write signs a certificate and writes it with its new key. Without a key the authority signs itself.
func (a *Authority) write(name string, template *x509.Certificate) *ecdsa.PrivateKey {
	a.t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	signer := a.key
	if signer == nil {
		signer = key
	}

	template.SerialNumber = big.NewInt(a.next)
	a.next++
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = time.Now().Add(a.ends)
	cert, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}

	a.replace(name+".crt", &pem.Block{Type: "CERTIFICATE", Bytes: cert})
	a.replace(name+".key", &pem.Block{Type: "EC PRIVATE KEY", Bytes: private})
	return key
}

// replace writes a file beside its place and moves it there. Envoy reads files again when they are moved.
func (a *Authority) replace(name string, block *pem.Block) {
	a.t.Helper()

	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path+".new", pem.EncodeToMemory(block), 0o600); err != nil {
		a.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		a.t.Fatal(err)
	}
}
