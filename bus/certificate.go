package bus

import (
	"crypto/tls"
	"os"
	"sync"
	"time"
)

// certificateFiles is a certificate and its key in files, which are read again when they have changed. While they cannot
// be read the last certificate stays in use.
type certificateFiles struct {
	cert, key string

	mu       sync.Mutex
	loaded   *tls.Certificate // guarded by mu
	modified time.Time        // guarded by mu; of the file of the certificate when it was loaded
}

// get returns the certificate. It is made for tls.Config.GetCertificate.
func (f *certificateFiles) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()

	info, err := os.Stat(f.cert)
	if err == nil && !info.ModTime().Equal(f.modified) {
		var pair tls.Certificate
		pair, err = tls.LoadX509KeyPair(f.cert, f.key)
		if err == nil {
			f.loaded = &pair
			f.modified = info.ModTime()
		}
	}
	if f.loaded == nil {
		return nil, err
	}
	return f.loaded, nil
}
