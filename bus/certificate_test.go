package bus_test

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/stator-project/stator/bus"
)

// TestCertificateIsReadAgain replaces the files of a certificate while it is in use, and then breaks them.
func TestCertificateIsReadAgain(t *testing.T) {
	ca := newAuthority(t)
	cert, key := ca.issue("bus")
	presented := bus.CertificateOf(cert, key)
	first, err := presented()
	if err != nil {
		t.Fatal(err)
	}

	ca.issue("bus")
	touch(t, cert, time.Second)
	second, err := presented()
	if err != nil || bytes.Equal(first, second) {
		t.Errorf("the new certificate is not used: %v", err)
	}

	if err := os.WriteFile(cert, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	touch(t, cert, 2*time.Second)
	third, err := presented()
	if err != nil || !bytes.Equal(third, second) {
		t.Errorf("a broken file has replaced the certificate: %v", err)
	}
	if _, err := bus.CertificateOf(cert, key)(); err == nil {
		t.Error("a broken file is a certificate")
	}
}

// touch gives a file a later time, as a writer some time later would.
func touch(t *testing.T, path string, later time.Duration) {
	t.Helper()

	at := time.Now().Add(later)
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}
