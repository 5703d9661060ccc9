package bus

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/stator-project/stator/internal/fleet"
)

// Role names the permissions of a user of the bus; see [Permissions].
type Role string

// The roles.
const (
	RoleAgent    Role = "agent"    // stator agent, on one node
	RoleRouter   Role = "router"   // stator extproc
	RoleControl  Role = "control"  // stator xds
	RolePlanner  Role = "planner"  // stator planner
	RoleScaler   Role = "scaler"   // a program that carries plans out: see Wanted
	RoleObserver Role = "observer" // people: reads everything
	RoleAdmin    Role = "admin"    // everything; stator up with bus.url needs it
)

// roles lists the roles in the order of the documentation.
var roles = []Role{RoleAgent, RoleRouter, RoleControl, RolePlanner, RoleScaler, RoleObserver, RoleAdmin}

// User is a client of the embedded server.
type User struct {
	// Name is a name of one part, because subjects of replies contain it.
	Name string `yaml:"user"`
	// Password, or its hash by bcrypt in PasswordHash, is the secret that the user must know.
	Password     string `yaml:"password"`
	PasswordHash string `yaml:"passwordHash"`
	Role         Role   `yaml:"role"`
	// Node confines an agent to the workers of its --node. Other roles have none.
	Node string `yaml:"node"`
}

const (
	// maxUsersFile bounds the file of users in bytes.
	maxUsersFile = 1 << 20
	// minPassword is the fewest characters of a password.
	minPassword = 12
	// bcryptPrefix begins every hash of bcrypt, and a password that begins so would be taken for one.
	bcryptPrefix = "$2"
)

// ParseUsers reads a YAML list of users. Its errors name users and no passwords.
func ParseUsers(data []byte) ([]User, error) {
	if len(data) > maxUsersFile {
		return nil, fmt.Errorf("the file of users has more than %d bytes", maxUsersFile)
	}

	var users []User
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&users); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("the file of users is empty")
		}
		return nil, errors.New("the file of users must be a list of {user, password or passwordHash, role, node}") // err quotes values
	}
	return users, checkUsers(users)
}

// checkUsers returns everything that is wrong with users.
func checkUsers(users []User) error {
	if len(users) == 0 {
		return errors.New("the file of users is empty")
	}

	var errs []error
	names := map[string]bool{}
	for i := range users {
		u := &users[i]
		if names[u.Name] {
			errs = append(errs, fmt.Errorf("user %q is there twice", u.Name))
		}
		names[u.Name] = true
		if err := u.validate(); err != nil {
			errs = append(errs, fmt.Errorf("user %d (%q): %w", i+1, u.Name, err))
		}
	}
	return errors.Join(errs...)
}

// validate returns an error for a user that is not valid.
func (u *User) validate() error {
	switch {
	case !fleet.ValidName(u.Name):
		return errors.New("the name must match [a-z0-9-]+ and have at most 63 characters")
	case u.Name == ownerName:
		return errors.New("the name is that of the server's own user")
	case (u.Password == "") == (u.PasswordHash == ""):
		return errors.New("set one of password and passwordHash")
	case u.PasswordHash != "" && !strings.HasPrefix(u.PasswordHash, bcryptPrefix):
		return errors.New("passwordHash must be of bcrypt, and begin with $2")
	case strings.HasPrefix(u.Password, bcryptPrefix):
		return errors.New("the password begins like a hash of bcrypt: set passwordHash instead")
	case u.Password != "" && len(u.Password) < minPassword:
		return fmt.Errorf("the password must have at least %d characters", minPassword)
	case !slices.Contains(roles, u.Role):
		return fmt.Errorf("the role is %q: it must be one of %v", u.Role, roles)
	case u.Role == RoleAgent && !fleet.ValidName(u.Node):
		return errors.New("an agent needs the node of its --node, which matches [a-z0-9-]+")
	case u.Role != RoleAgent && u.Node != "":
		return errors.New("only agents have a node")
	}
	return nil
}

// Permissions are the subjects that a user may use. Subjects may end in ">", and "*" stands for one part. All others are
// refused, the subjects of NATS itself included.
type Permissions struct {
	Publish, Subscribe []string
}

// Permissions returns the subjects that a user may use in a cluster.
//
// No role can have the server publish bytes that it chose to a subject that it may not publish to. NATS sends answers and
// messages of consumers to any subject that a client names. So roles that write a bucket have no consumers on it, and no role has
// direct reads, whose answers are bare values. No role may answer messages by allow_responses of NATS: the sender of a message
// names any subject for the answer, and could be the receiver itself.
func (u *User) Permissions(cluster string) Permissions {
	s := subjects{cluster}
	inbox := inboxOf(u.Name) + ".>"

	switch u.Role {
	case RoleAgent:
		// It writes the leases of its node, and reads leases to find who holds its own. It watches the assignment of its node. It
		// receives the addresses of the KV stores of all nodes. It answers requests on subjects of its node.
		return Permissions{
			Publish: append([]string{
				s.key(workerBucket, u.Node+".>"), s.message("kv", u.Node), s.message("load", u.Node, ">"), s.message("kvstore", u.Node),
				s.message("answer", u.Node, "*"), s.message("here", string(PartStore), u.Node),
				s.info(workerBucket), s.getEntry(workerBucket), s.key(slotsBucket, u.Node), s.info(slotsBucket),
			}, s.consumeKey(assignBucket, u.Node)...),
			Subscribe: []string{s.message("rpc", u.Node, ">"), s.message("kvstore", "*"), inbox},
		}
	case RoleRouter:
		// It has no consumer on the bucket that it writes.
		return Permissions{
			Publish: append([]string{
				s.message("book", "*"), s.message("demand", "*"), s.message("ends", "*"), s.message("gone"), s.message("rpc", ">"),
				s.message("drains"), s.message("here", string(PartRouter)),
				s.key(spentBucket, spentKey), s.info(spentBucket), s.getEntry(spentBucket),
			}, s.watch()...),
			Subscribe: []string{s.message("kv", "*"), s.message("load", ">"), s.message("book", "*"), s.message("ends", "*"),
				s.message("gone"), s.message("drains"), s.message("answer", "*", "*"), s.message("here", ">"), inbox},
		}
	case RoleControl:
		return Permissions{
			Publish:   append(s.watch(), s.message("drains"), s.message("here", string(PartControl))),
			Subscribe: []string{s.message("drains"), inbox},
		}
	case RolePlanner:
		// It has no consumer on the buckets that it writes.
		return Permissions{
			Publish: append([]string{
				s.key(planBucket, planKey), s.info(planBucket), s.getEntry(planBucket),
				s.key(leaderBucket, leaderKey), s.info(leaderBucket), s.getEntry(leaderBucket),
				s.key(scaleBucket, wantedKey), s.info(scaleBucket), s.getEntry(scaleBucket),
				s.key(assignBucket, "*"), s.info(assignBucket), s.getEntry(assignBucket), s.message("drains"),
				s.message("here", string(PartPlanner)),
			}, append(s.consume(workerBucket), s.consume(slotsBucket)...)...),
			Subscribe: []string{s.message("demand", "*"), s.message("load", ">"), s.message("book", "*"), s.message("drains"), inbox},
		}
	case RoleScaler:
		return Permissions{
			Publish:   []string{s.key(scaleBucket, doneKey), s.info(scaleBucket), s.getEntry(scaleBucket)},
			Subscribe: []string{inbox},
		}
	case RoleObserver:
		return Permissions{Publish: s.watch(), Subscribe: []string{s.message(">"), inbox}}
	}
	return Permissions{Publish: []string{">"}, Subscribe: []string{">"}}
}

// subjects makes the subjects of one cluster. Subjects that begin with "$" are the interface of NATS to the streams that
// store buckets.
type subjects struct{ cluster string }

// message returns a subject of plain messages.
func (s subjects) message(parts ...string) string {
	return "stator.v1." + s.cluster + "." + strings.Join(parts, ".")
}

// key returns the subject that writes keys of a bucket.
func (s subjects) key(bucket, key string) string {
	return "$KV." + bucketName(s.cluster, bucket) + "." + key
}

// info returns the subject of requests for the description of a bucket, which opening it takes.
func (s subjects) info(bucket string) string {
	return "$JS.API.STREAM.INFO." + streamName(s.cluster, bucket)
}

// getEntry returns the subject of requests for one entry of a bucket. The answer wraps the value in JSON.
func (s subjects) getEntry(bucket string) string {
	return "$JS.API.STREAM.MSG.GET." + streamName(s.cluster, bucket)
}

// consume returns the subjects that watching a bucket takes. Names of consumers are random, and no role may list them, so
// deleting the consumers of others would take a guess.
func (s subjects) consume(bucket string) []string {
	return append([]string{
		s.info(bucket), s.getEntry(bucket), "$JS.API.CONSUMER.CREATE." + streamName(s.cluster, bucket) + ".>",
	}, s.ofConsumers(bucket)...)
}

// consumeKey returns the subjects that watching one key of a bucket takes.
func (s subjects) consumeKey(bucket, key string) []string {
	return append([]string{
		s.info(bucket), "$JS.API.CONSUMER.CREATE." + streamName(s.cluster, bucket) + ".*." + s.key(bucket, key),
	}, s.ofConsumers(bucket)...)
}

// ofConsumers returns the subjects of consumers that are there.
func (s subjects) ofConsumers(bucket string) []string {
	stream := streamName(s.cluster, bucket)
	return []string{"$JS.API.CONSUMER.INFO." + stream + ".*", "$JS.API.CONSUMER.DELETE." + stream + ".*", "$JS.FC." + stream + ".>"}
}

// watch returns the subjects that watching both buckets takes.
func (s subjects) watch() []string {
	return append(s.consume(workerBucket), s.consume(planBucket)...)
}

// serverConfig is the part of a configuration of nats-server that has the users. NATS reads JSON.
type serverConfig struct {
	Authorization struct {
		Users []serverUser `json:"users"`
	} `json:"authorization"`
}

// serverUser is a user in a configuration of nats-server.
type serverUser struct {
	User        string `json:"user"`
	Password    string `json:"password"`
	Permissions struct {
		Publish   allowed `json:"publish"`
		Subscribe allowed `json:"subscribe"`
	} `json:"permissions"`
}

type allowed struct {
	Allow []string `json:"allow"`
}

// WritePermissions writes users and their permissions as a configuration of nats-server, with placeholders for
// passwords.
func WritePermissions(w io.Writer, users []User, cluster string) error {
	var c serverConfig
	for i := range users {
		u := &users[i]
		may := u.Permissions(cluster)
		out := serverUser{User: u.Name, Password: "(a hash of bcrypt)"}
		out.Permissions.Publish.Allow = may.Publish
		out.Permissions.Subscribe.Allow = may.Subscribe
		c.Authorization.Users = append(c.Authorization.Users, out)
	}

	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(c)
}
