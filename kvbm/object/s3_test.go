package object_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stator-project/stator/kvbm/object"
)

// answer serves one status with one code of S3.
func answer(status int, code string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>a message</Message></Error>`, code)
	}
}

// TestFaultsStateWhatToChange has a server give errors, to each kind of request.
func TestFaultsStateWhatToChange(t *testing.T) {
	for _, c := range []struct {
		status  int
		code    string
		reason  string
		lasting bool
	}{
		{404, "NoSuchBucket", "create it, or correct its name", true},
		{403, "AccessDenied", "allow s3:PutObject", true},
		{403, "InvalidAccessKeyId", "correct the access key", true},
		{403, "SignatureDoesNotMatch", "correct the access key", true},
		{403, "RequestTimeTooSkewed", "by NTP", true},
		{400, "AuthorizationHeaderMalformed", "correct the region", true},
		{501, "NotImplemented", "use another store", true},
		{503, "SlowDown", "raise its limit", false},
		{500, "InternalError", "answers with status 500 InternalError", false},
	} {
		server := httptest.NewServer(answer(c.status, c.code))
		s := openS3(t, server.URL, "blocks", nil)
		_, putErr := s.PutIfAbsent(t.Context(), "a", []byte("x"))
		_, _, listErr := s.List(t.Context(), "a", "", 1)
		for _, err := range []error{putErr, listErr, s.GetRange(t.Context(), "a", 0, slots(1, 1), nil), s.Delete(t.Context(), "a")} {
			var fault *object.Fault
			if !errors.As(err, &fault) || fault.Lasting != c.lasting || !strings.Contains(fault.Reason, c.reason) {
				t.Errorf("%s: %v", c.code, err)
			}
		}
		s.Close()
		server.Close()
	}
}

// TestLongAnswers has a server whose lists do not end: of names, of empty entries, and of one long name. The client reads a bounded part of
// them.
func TestLongAnswers(t *testing.T) {
	for name, part := range map[string]string{
		"names":         "<Contents><Key>%d</Key><Size>1</Size></Contents>",
		"empty entries": "<Contents/>",
		"a long name":   strings.Repeat("x", 100),
		"an error":      "<Error>",
	} {
		t.Run(name, func(t *testing.T) {
			var sent atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if name == "an error" {
					w.WriteHeader(http.StatusInternalServerError)
				}
				before := `<?xml version="1.0" encoding="UTF-8"?><ListBucketResult>`
				if name == "a long name" {
					before += "<Contents><Key>"
				}
				n, err := w.Write([]byte(before))
				page := []byte(strings.ReplaceAll(strings.Repeat(part, 1000), "%d", "a"))
				for err == nil && sent.Add(int64(n)) < 200<<20 {
					n, err = w.Write(page)
				}
			}))
			defer server.Close()
			s := openS3(t, server.URL, "blocks", nil)
			defer s.Close()
			_, _, err := s.List(t.Context(), "a", "", 1000)
			var fault *object.Fault
			if !errors.As(err, &fault) || name != "an error" && !strings.Contains(fault.Reason, "correct the endpoint") {
				t.Errorf("the list: %v", err)
			}
			if n := sent.Load(); n > 64<<20 {
				t.Errorf("the server has sent %d MB", n>>20)
			}
		})
	}
}

// TestConnectionFaults has servers that cannot be reached, are not trusted, or break off.
func TestConnectionFaults(t *testing.T) {
	closed := httptest.NewServer(nil)
	closed.Close()
	encrypted := httptest.NewTLSServer(answer(500, "x"))
	defer encrypted.Close()
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		w.Header().Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write([]byte("half"))
	}))
	defer broken.Close()

	for _, c := range []struct {
		endpoint, reason string
		lasting          bool
	}{
		{closed.URL, "start the store, or correct the endpoint", true},
		{encrypted.URL, "give the CA of the store", true},
		{"http://host.invalid", "cannot be resolved", true},
		{broken.URL, "broke", false},
	} {
		err := openS3(t, c.endpoint, "blocks", nil).GetRange(t.Context(), "a", 0, slots(1, 100), nil)
		var fault *object.Fault
		if !errors.As(err, &fault) || fault.Lasting != c.lasting || !strings.Contains(fault.Reason, c.reason) {
			t.Errorf("%s: %v", c.endpoint, err)
		}
	}

	pool := x509.NewCertPool()
	pool.AddCert(encrypted.Certificate())
	s := openS3(t, encrypted.URL, "blocks", func(c *object.S3Config) { c.RootCAs = pool })
	if err := s.Delete(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "status 500") {
		t.Errorf("with its CA: %v", err)
	}
}

// TestCredentials takes them from the environment and from the role of a container, and reports if there are none.
func TestCredentials(t *testing.T) {
	var key atomic.Value
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key.Store(r.Header.Get("Authorization"))
		w.WriteHeader(http.StatusNoContent)
	}))
	defer store.Close()
	var hang atomic.Bool
	role := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hang.Load() {
			<-r.Context().Done()
			return
		}
		fmt.Fprintf(w, `{"AccessKeyId":"ofrole","SecretAccessKey":"s","Token":"t","Expiration":%q}`, time.Now().Add(time.Hour).Format(time.RFC3339))
	}))
	defer role.Close()
	none := func(c *object.S3Config) {
		c.AccessKey = ""
		c.SecretKey = ""
	}

	t.Setenv("AWS_ACCESS_KEY_ID", "ofenvironment")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "s")
	for want, change := range map[string]func(c *object.S3Config){"Credential=stator/": nil, "Credential=ofenvironment/": none} {
		if err := openS3(t, store.URL, "blocks", change).Delete(t.Context(), "a"); err != nil || !strings.Contains(key.Load().(string), want) {
			t.Errorf("%s: error %v, %v", want, err, key.Load())
		}
	}

	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", role.URL)
	if err := openS3(t, store.URL, "blocks", none).Delete(t.Context(), "a"); err != nil || !strings.Contains(key.Load().(string), "Credential=ofrole/") {
		t.Errorf("role: error %v, %v", err, key.Load())
	}

	hang.Store(true)
	s := openS3(t, store.URL, "blocks", none)
	for range 2 { // the second waits for the first
		go func() { _ = s.Delete(t.Context(), "a") }()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	if err := s.Delete(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 10*time.Second {
		t.Errorf("after %v: %v", time.Since(began), err)
	}

	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", store.URL)
	err := openS3(t, store.URL, "blocks", none).Delete(t.Context(), "a")
	if err == nil || !strings.Contains(err.Error(), "there are no credentials: set accessKey") {
		t.Errorf("no credentials: %v", err)
	}
}

func TestOpenS3Refuses(t *testing.T) {
	for _, c := range []object.S3Config{
		{Endpoint: "minio:9000", Bucket: "blocks"},
		{Endpoint: "ftp://minio", Bucket: "blocks"},
		{Endpoint: "http://minio/path", Bucket: "blocks"},
		{Endpoint: "http://minio"},
		{Endpoint: "http://minio", Bucket: "blocks", AccessKey: "alone"},
	} {
		if _, err := object.OpenS3(c); err == nil || !strings.HasPrefix(err.Error(), "open bucket") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
