package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Auth names the clients that Envoy admits. With keys and issuers, one of both suffices.
type Auth struct {
	// KeysFile is a file with API keys: a list of {tenant: NAME, key: KEY}. Control planes read it, again when it changes, and send the
	// keys to Envoys. A tenant may have several keys. Clients send a key as OpenAI's, Anthropic's and Azure's do: in authorization,
	// x-api-key or api-key.
	KeysFile string `yaml:"keysFile" file:"watched" default:"no API keys"`
	// JWT lists the issuers of JSON Web Tokens, which clients send in authorization. A token must name one of them in iss, and the
	// time at which it expires in exp.
	JWT []Issuer `yaml:"jwt"`
}

// Issuer is an issuer of tokens.
type Issuer struct {
	// Issuer is the value of iss in its tokens.
	Issuer string `yaml:"issuer" default:"required"`
	// Audiences are the values of aud, of which a token needs one. Without it an issuer's tokens for other services are accepted.
	Audiences []string `yaml:"audiences" default:"required"`
	// JWKSFile is a file with the public keys of the issuer, as a JSON Web Key Set. Control planes read it, again when it changes.
	JWKSFile string `yaml:"jwksFile" file:"watched" default:"jwksURL"`
	// JWKSURL is the https:// URL of such a set in place of a file. Each Envoy fetches it at its start, and again every 5 minutes.
	JWKSURL string `yaml:"jwksURL" default:"jwksFile"`
	// JWKSCAFile is a file with the authorities that may have signed the certificate of jwksURL's server, as each Envoy sees it.
	JWKSCAFile string `yaml:"jwksCAFile" file:"relative"`
	// TenantClaim is the claim that is the tenant. A dot leads into a claim that is an object: org.id. A token without it is refused.
	TenantClaim string `yaml:"tenantClaim"`
}

// IsOn reports whether clients are authenticated.
func (a *Auth) IsOn() bool { return a.KeysFile != "" || len(a.JWT) > 0 }

// Bounds of keys and tokens.
const (
	maxKeysFile = 1 << 20
	maxKeys     = 4096
	minKey      = 16
	maxKey      = 256
	maxIssuers  = 16
	maxTenant   = 128

	// MaxJWKS bounds a set of an issuer's keys in bytes.
	MaxJWKS = 256 << 10
)

// tokenStart begins every JSON Web Token: it is the base64 of an object's first bytes.
const tokenStart = "eyJ"

// APIKey is a key of a tenant's clients.
type APIKey struct {
	// Tenant has 1 to 128 visible characters of ASCII.
	Tenant string `yaml:"tenant"`
	// Key has 16 to 256 visible characters of ASCII, and does not begin as a token does.
	Key string `yaml:"key"`
}

// Watched returns the files whose content is read with the configuration: those of keys.
func (g *Gateway) Watched() (files []string) {
	if g.Auth.KeysFile != "" {
		files = append(files, g.Auth.KeysFile)
	}
	for i := range g.Auth.JWT {
		if file := g.Auth.JWT[i].JWKSFile; file != "" {
			files = append(files, file)
		}
	}
	return files
}

// ParseKeys reads a file of API keys. No error has a key in it.
func ParseKeys(data []byte) ([]APIKey, error) {
	if len(data) > maxKeysFile {
		return nil, fmt.Errorf("the file has more than %d bytes", maxKeysFile)
	}
	var keys []APIKey
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&keys); err != nil || len(keys) == 0 || len(keys) > maxKeys {
		// The decoder's error quotes values.
		return nil, fmt.Errorf("the file must be a list of 1 to %d entries {tenant: NAME, key: KEY}", maxKeys)
	}

	var errs []error
	first := map[string]int{}
	for i, k := range keys {
		if !isVisible(k.Tenant, 1, maxTenant) || strings.Contains(k.Tenant, ",") {
			errs = append(errs, fmt.Errorf("entry %d: the tenant must have 1 to %d visible ASCII characters and no comma", i+1, maxTenant))
		}
		if !isVisible(k.Key, minKey, maxKey) || strings.HasPrefix(k.Key, tokenStart) {
			errs = append(errs, fmt.Errorf("entry %d: the key must have %d to %d visible ASCII characters and not begin with %q; "+
				"`openssl rand -hex 32` makes one", i+1, minKey, maxKey, tokenStart))
		}
		if n := first[k.Key]; n > 0 {
			errs = append(errs, fmt.Errorf("entry %d has the key of entry %d: give each entry its own", i+1, n))
		}
		first[k.Key] = i + 1
	}
	return keys, errors.Join(errs...)
}

// isVisible reports whether a text has so many bytes, and only characters that a header can hold without quotes.
func isVisible(s string, least, most int) bool {
	return len(s) >= least && len(s) <= most && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// CheckJWKS returns an error for a text that is not a set of public keys.
func CheckJWKS(data []byte) error {
	var set struct {
		Keys []struct {
			Type    string          `json:"kty"`
			Private json.RawMessage `json:"d"`
		} `json:"keys"`
	}
	if len(data) > MaxJWKS {
		return fmt.Errorf("the set has more than %d bytes", MaxJWKS)
	}
	if err := json.Unmarshal(data, &set); err != nil || len(set.Keys) == 0 {
		return errors.New(`the file must be a JSON Web Key Set: {"keys": [...]} with at least one key`)
	}
	for i, k := range set.Keys {
		if k.Type == "oct" || k.Private != nil {
			return fmt.Errorf("key %d of the set is secret, and could sign tokens: put public keys there", i+1)
		}
	}
	return nil
}

// Greatest limits of a tenant a minute, and its greatest budget in tokens, as the routers that count have them.
const (
	maxRequests = 100_000
	maxTokens   = 1_000_000_000
	maxBudget   = 1_000_000_000_000_000
)

// auth checks whom the gateway admits.
func (v *validator) auth(a *Auth) {
	v.is(len(a.JWT) <= maxIssuers, "gateway.auth.jwt", "must have at most %d issuers", maxIssuers)
	for i := range a.JWT {
		j, at := &a.JWT[i], fmt.Sprintf("gateway.auth.jwt[%d]", i)
		v.is(j.Issuer != "", at+".issuer", "is required: it is iss in the tokens")
		v.is(len(j.Audiences) > 0, at+".audiences", "must name at least one: it is aud in tokens for this gateway")
		v.is((j.JWKSFile == "") != (j.JWKSURL == ""), at, "needs either jwksFile or jwksURL")
		u, err := url.Parse(j.JWKSURL)
		v.is(j.JWKSURL == "" || err == nil && u.Scheme == "https" && u.Hostname() != "" && u.User == nil, at+".jwksURL",
			"is %q: use a URL such as https://issuer.example/keys", j.JWKSURL)
		v.is(j.JWKSURL == "" || j.JWKSCAFile != "", at+".jwksCAFile", "is required with jwksURL")
		v.is(isVisible(j.TenantClaim, 1, maxTenant), at+".tenantClaim", "must be the name of a claim, such as sub")
	}
}
