package bus

// CertificateOf returns a function that returns the certificate that a server with these files presents.
func CertificateOf(cert, key string) func() ([]byte, error) {
	files := &certificateFiles{cert: cert, key: key}
	return func() ([]byte, error) {
		pair, err := files.get(nil)
		if err != nil {
			return nil, err
		}
		return pair.Certificate[0], nil
	}
}
