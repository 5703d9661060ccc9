package config

import (
	"net/url"
	"slices"
	"strings"
)

// Bus configures how the processes of one cluster find each other.
type Bus struct {
	// Cluster is the name of the cluster on the bus, and matches [a-z0-9-]+.
	Cluster string `yaml:"cluster" reload:"every part"`
	// URL is the NATS server, such as "nats://127.0.0.1:4222". Without it, stator up embeds one, and stator
	// extproc reads its workers from this file.
	URL string `yaml:"url" reload:"every part"`
	// User is the name of this process's user on the bus. It needs passwordFile.
	User string `yaml:"user" reload:"every part"`
	// PasswordFile is a file with the user's password. It is read again at every connection.
	PasswordFile string `yaml:"passwordFile" file:"relative" reload:"every part"`
	// CredentialsFile is a file with the JWT and key of a NATS user, instead of user and passwordFile.
	CredentialsFile string `yaml:"credentialsFile" file:"relative" reload:"every part"`
	// CAFile has the certificates that may have signed the server's, in PEM. Without it the system's certificates count.
	CAFile string `yaml:"caFile" file:"relative" reload:"every part"`
	// CertFile is this process's certificate, in PEM, for a server that asks for one. It needs keyFile.
	CertFile string `yaml:"certFile" file:"relative" reload:"every part"`
	// KeyFile is the key of certFile, in PEM.
	KeyFile string `yaml:"keyFile" file:"relative" reload:"every part"`
	// LeaseTTL is the time that a worker stays in the fleet after its agent's last sign of life, at least
	// "1s". Agents renew their leases every third of it.
	LeaseTTL Duration `yaml:"leaseTTL" reload:"every part"`
}

// bus checks how the processes find each other and prove who they are.
func (v *validator) bus(b *Bus) {
	v.busURL(b.URL)
	v.is((b.User == "") == (b.PasswordFile == ""), "bus.passwordFile", "and bus.user need each other")
	v.is(b.User == "" || b.CredentialsFile == "", "bus.credentialsFile", "replaces bus.user: remove one")
	v.is((b.CertFile == "") == (b.KeyFile == ""), "bus.keyFile", "and bus.certFile need each other")
}

// busURL checks the addresses of NATS servers, which a comma separates.
func (v *validator) busURL(urls string) {
	if urls == "" {
		return
	}
	for text := range strings.SplitSeq(urls, ",") {
		u, err := url.Parse(strings.TrimSpace(text))
		ok := err == nil && slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) && u.Host != ""
		v.is(ok, "bus.url", "is not the address of a NATS server, such as nats://127.0.0.1:4222")
	}
}
