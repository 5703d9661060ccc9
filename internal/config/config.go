package config

import (
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/cost"
	"github.com/stator-project/stator/internal/route/serving"
	"github.com/stator-project/stator/internal/route/sessionid"
)

// The apiVersion and kind every file must carry.
const (
	APIVersion = "stator.dev/v1alpha1"
	Kind       = "Stator"
)

// MaxBodyBytes is the largest value of gateway.maxBodyBytes.
const MaxBodyBytes = 1 << 30

// Config is the whole file.
//
// The comments of its fields, and of those below, are the cells of docs/configuration.md. Their tags mean:
// yaml is the key; reload names the parts that read the value only at their start, or is "live" in a group of such keys; default is
// shown instead of the value that setDefaults gives, and "required" means that there is none.
type Config struct {
	// APIVersion is the version of the file's format: "stator.dev/v1alpha1".
	APIVersion string `yaml:"apiVersion" default:"required" reload:"every part"`
	// Kind is the kind of the file: "Stator".
	Kind string `yaml:"kind" default:"required" reload:"every part"`
	// Gateway configures the listener for clients and its limits.
	Gateway Gateway `yaml:"gateway"`
	// Models are the models that clients may name. Requests that name no model, on paths that are passed
	// through, go to the first one.
	Models []Model `yaml:"models" default:"required"`
	// Index bounds the memory of the KV cache index, and sets when its content is checked.
	Index Index `yaml:"index"`
	// Prompts bounds the memory of prompts.
	Prompts Prompts `yaml:"prompts"`
	// Decisions configures the log of the router's decisions. The newest decisions are always in memory.
	Decisions Decisions `yaml:"decisions"`
	// Tracing has routers and Envoys export spans of requests to a receiver of OpenTelemetry's protocol. Without it there are none.
	Tracing Tracing `yaml:"tracing" reload:"routers"`
	// Bus configures how the processes of one cluster find each other.
	Bus Bus `yaml:"bus"`
	// EngineTLS has every part of Stator, and every Envoy, reach engines by TLS. Without it these connections are not encrypted.
	EngineTLS EngineTLS `yaml:"engineTLS" reload:"every part"`
	// Planner configures how many workers each model has, by the demand of clients and the latencies that they may see.
	Planner Planner `yaml:"planner"`
	// Expected is how many parts the cluster should have. With fewer, routers and "stator doctor" report the absent ones.
	Expected Expected `yaml:"expected"`

	// Found are the workers that were discovered, of models above: see With. A file has none.
	Found []fleet.Worker `yaml:"-"`
}

// Gateway configures the listener for clients.
type Gateway struct {
	// Listen is the IP and port on which Envoy serves clients. Use "0.0.0.0:8080" to serve other machines.
	Listen string `yaml:"listen"`
	// TLS encrypts the connections of clients, on trustedListen too. Without it they are not encrypted.
	TLS GatewayTLS `yaml:"tls"`
	// Auth has Envoy admit only clients of listen that have an API key or a token, and name the client's tenant in tenantHeader.
	// Engines do not get the credentials. Without it every client is admitted.
	Auth Auth `yaml:"auth"`
	// Limits bound what each tenant may send. They need tenantHeader or auth.
	Limits Limits `yaml:"limits"`
	// CORSOrigins are the origins of web pages whose scripts may call the gateway, such as "https://chat.example.com"; "*" is every page.
	// Without it browsers refuse to.
	CORSOrigins []string `yaml:"corsOrigins"`
	// AccessLog is where each Envoy writes a line of JSON for every request: "stdout", or the absolute path of a file on its host. A line
	// has no prompt and no credentials: see docs/front-door.md. Nothing bounds the file.
	AccessLog string `yaml:"accessLog" default:"none"`
	// AnswerTokens has Envoy read the usage in answers, and routers count their tokens: see docs/front-door.md. It needs Envoy 1.40, whose
	// filter for this is work in progress, and 3 to 4 µs of Envoy's CPU time for each token of a stream. With other Envoys streams
	// are estimated.
	AnswerTokens bool `yaml:"answerTokens"`
	// MaxBodyBytes bounds a request body, after Envoy has decompressed it. A larger one is answered with 413.
	MaxBodyBytes int64 `yaml:"maxBodyBytes"`
	// MaxBodiesBytes bounds the sum of the bodies for which a router is making decisions. A request beyond it is
	// answered with 503. It must be at least maxBodyBytes.
	MaxBodiesBytes int64 `yaml:"maxBodiesBytes"`
	// PassPaths are further paths whose requests reach workers. Stator does not parse these requests; they go to the worker of
	// their session, or to the least loaded one. Their bodies must be JSON objects in UTF-8 or forms (multipart/form-data). A
	// path that ends in "/*" stands for all paths below it, and "/*" for all paths. Engines have paths that change or stop them,
	// so list only what every client may use. Others get 404.
	PassPaths []string `yaml:"passPaths" default:"the paths of OpenAI, vLLM and Anthropic that compute something; see docs/security.md"`
	// DecisionTimeout is the time that Envoy waits for a decision before it routes a request itself. A
	// short one costs cache hits while the router is busy. A long one costs time while the router hangs.
	DecisionTimeout Duration `yaml:"decisionTimeout"`
	// IdleTimeout ends a stream on which no byte has moved in either direction.
	IdleTimeout Duration `yaml:"idleTimeout"`
	// AttemptIdleTimeout ends an attempt at a worker on which no byte has moved for so long. If the response has not
	// begun, the request is sent to another worker, once. The longest prompt must be computed in less, and what waits
	// before it in the engine. 0s is no bound but idleTimeout.
	AttemptIdleTimeout Duration `yaml:"attemptIdleTimeout" default:"half of idleTimeout"`
	// HeadersTimeout is the longest time that the headers of a request may take to arrive. 0s is no bound.
	HeadersTimeout Duration `yaml:"headersTimeout"`
	// BodyTimeout is the longest time that a request may take to arrive, its body included. 0s is no bound. A
	// slower one is answered with 408. The time of the response does not count.
	BodyTimeout Duration `yaml:"bodyTimeout"`
	// ConnectionIdleTimeout ends a connection of a client that has no request, from its beginning or its last request on.
	// 0s is no bound. Idle connections count in maxConnections, so a long one lets few clients keep out all others. A short
	// one has clients that keep connections open connect again, and lets some meet a connection that is just ending.
	ConnectionIdleTimeout Duration `yaml:"connectionIdleTimeout"`
	// MaxConnections bounds the connections of clients of an Envoy that stator up runs. Further ones are closed. From three
	// quarters of it on, connections without a request end earlier than after connectionIdleTimeout: after 1s near the bound.
	// For other Envoys see "stator envoy bootstrap --max-connections".
	MaxConnections int `yaml:"maxConnections" reload:"Envoy"`
	// MaxHeapBytes bounds the heap of an Envoy that stator up runs: near it, requests are answered with 503. 0 is
	// no bound. Each request in flight may need maxBodyBytes. For other Envoys see "stator envoy bootstrap
	// --max-heap-bytes".
	MaxHeapBytes int64 `yaml:"maxHeapBytes" reload:"Envoy"`
	// TrustedListen is a second IP and port for clients whose routing hints count. Only trusted clients may
	// reach it. Without it there is none.
	TrustedListen string `yaml:"trustedListen" default:"none"`
	// Sessions are the places in which clients name their sessions: "header:NAME", or "body:MEMBER", where a dot leads into a member
	// that is an object. The first one that a request has counts. If the router makes no decision, Envoy sends a session to one
	// worker, by the headers of the list alone. At most 32. See docs/routing.md.
	Sessions []string `yaml:"sessions" default:"the headers and members of known clients; see docs/routing.md"`
	// AffinityFilter names the sessions of clients that name none, for requests without a decision of the router. "wasm" is
	// a module in Envoy that computes the header x-stator-affinity from the beginning of the prompt, so the turns of a
	// conversation go to one worker. It reads at most 1 MiB of a body. "make build-wasm" builds it. Envoy needs 8 s more of
	// CPU time at its start, and 87 MB more memory. "off" means that such requests go to random workers. It needs a single
	// model without transfers of KV caches, and no tenantHeader: else Envoy refuses requests without a decision. See
	// docs/operations.md.
	AffinityFilter string `yaml:"affinityFilter"`
	// Hints selects the routing hints of trusted clients that count. "nvext" means nvext in the body. "headers" means the
	// headers x-stator-priority, x-stator-strict-priority, x-stator-deadline, x-stator-class, x-stator-tenant,
	// x-stator-worker, x-stator-rank, x-stator-prefill and x-stator-migration-limit too, which take precedence. "off" means none.
	// A client whose
	// hints count can go before others.
	Hints string `yaml:"hints"`
	// HintsFrom is whose hints count: "trusted" means clients of trustedListen, and those whose roleHeader has one
	// of trustedRoles. "everyone" means all clients.
	HintsFrom string `yaml:"hintsFrom"`
	// RoleHeader is a request header that an Envoy of yours sets from its authentication, such as
	// "x-jwt-role". Envoy must remove it from requests of clients.
	RoleHeader string `yaml:"roleHeader" default:"none"`
	// TrustedRoles are the values of roleHeader whose clients are trusted.
	TrustedRoles []string `yaml:"trustedRoles"`
	// Sidecars means that a sidecar of each decode worker sends prompts to prefill workers, as llm-d's routing sidecar does. Routers name
	// the prefill worker in the header x-prefiller-host-port, in place of one of the client, and send prompts to no engine themselves. A
	// gateway must ask a router for each request (failureMode FailClose): without one, the header of a client would count.
	Sidecars bool `yaml:"sidecars"`
	// TenantHeader is a request header with the client's tenant, which Envoy sets from its authentication. Each
	// tenant then has its private cache_salt, so that no tenant can find out what another has asked, and a
	// fair queue serves tenants alike. Without auth it is ignored on Stator's own listener for all clients. Paths on which
	// engines take no cache_salt, such as /v1/audio/speech, leave the default of passPaths.
	TenantHeader string `yaml:"tenantHeader" default:"none; x-tenant with auth"`
	// TenantSecretFile is a file with a secret of 16 or more characters, from which the cache_salt of every tenant
	// follows: without it no client can compute one. All routers need the same. The file is read again when it changes:
	// then all tenants have new salts, and none of their earlier prompts is found in a cache. Without a file every router
	// makes another secret at its start, so with several routers caches are found less often.
	TenantSecretFile string `yaml:"tenantSecretFile" file:"relative" default:"a random secret at every start" reload:"routers"`
}

// GatewayTLS has the certificates of the gateway. The files are in PEM, as each Envoy sees them. Envoy reads them again when they are
// moved into their folder, as cert-manager and Kubernetes do; new connections then use them.
type GatewayTLS struct {
	// CertFile is a file with the certificate of the gateway, and the ones that lead to its authority. With it, clients need https://,
	// and may use HTTP/2.
	CertFile string `yaml:"certFile" file:"relative" default:"no TLS"`
	// KeyFile is a file with the private key of certFile.
	KeyFile string `yaml:"keyFile" file:"relative" default:"none"`
	// ClientCAFile is a file with the authorities of clients. With it, a client needs a certificate that one of them has signed.
	ClientCAFile string `yaml:"clientCAFile" file:"relative" default:"clients need no certificate"`
}

// Expected has the numbers of parts that should run, in the whole cluster. Routers count those that publish on the bus. Workers need no
// number: launch[].count, or the plan, has it.
type Expected struct {
	// Routers is the number of "stator extproc". 0 is not compared.
	Routers int `yaml:"routers"`
	// ControlPlanes is the number of "stator xds". 0 is not compared.
	ControlPlanes int `yaml:"controlPlanes"`
	// Planners is the number of "stator planner", those that stand by included. 0 is not compared.
	Planners int `yaml:"planners"`
	// Stores is the number of agents that have stores of KV blocks. 0 is not compared.
	Stores int `yaml:"stores"`
}

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

// Limits bound what each tenant may send a minute, and the tokens that it may use a day and a month. A request beyond them gets 429, and
// the time to wait in retry-after. Routers count, not Envoys: with several routers each admits its share of a minute's limits.
type Limits struct {
	// RequestsPerMinute bounds the requests of a tenant, to 100000 at most. 0 is no bound. A tenant that was idle may send all of them at
	// once.
	RequestsPerMinute int64 `yaml:"requestsPerMinute"`
	// PromptTokensPerMinute bounds the tokens in the prompts of a tenant, to 1000000000 at most. 0 is no bound. A tenant that has sent
	// more is refused until the minute's share of its limit has made up for it. Prompts that routers do not read do not count.
	PromptTokensPerMinute int64 `yaml:"promptTokensPerMinute"`
	// AnswerTokensPerMinute bounds the tokens in the answers to a tenant in the same way, to 1000000000 at most. 0 is no bound. It needs
	// answerTokens.
	AnswerTokensPerMinute int64 `yaml:"answerTokensPerMinute"`
	// TokensPerDay is the budget of a tenant for a day of UTC: the tokens of its prompts and answers together, to 1000000000000000 at most.
	// 0 is no bound. Routers share what has been used over the bus, and count alone without one. It needs answerTokens.
	TokensPerDay int64 `yaml:"tokensPerDay"`
	// TokensPerMonth is the same for a month of UTC.
	TokensPerMonth int64 `yaml:"tokensPerMonth"`
	// Tenants have limits of their own, in place of those above.
	Tenants []TenantLimits `yaml:"tenants"`
}

// TenantLimits are the limits of one tenant.
type TenantLimits struct {
	// Name is the tenant.
	Name string `yaml:"name" default:"required"`
	// RequestsPerMinute is as in limits; 0 is no bound.
	RequestsPerMinute int64 `yaml:"requestsPerMinute"`
	// PromptTokensPerMinute is as in limits; 0 is no bound.
	PromptTokensPerMinute int64 `yaml:"promptTokensPerMinute"`
	// AnswerTokensPerMinute is as in limits; 0 is no bound.
	AnswerTokensPerMinute int64 `yaml:"answerTokensPerMinute"`
	// TokensPerDay is as in limits; 0 is no bound.
	TokensPerDay int64 `yaml:"tokensPerDay"`
	// TokensPerMonth is as in limits; 0 is no bound.
	TokensPerMonth int64 `yaml:"tokensPerMonth"`
}

// StdoutLog is the value of gateway.accessLog for the standard output of Envoy.
const StdoutLog = "stdout"

// IsOn reports whether clients are authenticated.
func (a *Auth) IsOn() bool { return a.KeysFile != "" || len(a.JWT) > 0 }

// Scheme returns the scheme of the gateway's URL, which TLS decides.
func (g *Gateway) Scheme() string {
	if g.TLS.CertFile != "" {
		return "https://"
	}
	return "http://"
}

// TakesHints reports whether the routing hints of any client count.
func (g *Gateway) TakesHints() bool {
	return g.Hints != hintsOff && (g.TrustsEveryone() || g.TrustedListen != "" || len(g.TrustedRoles) > 0)
}

// TrustsEveryone reports whether the routing hints of all clients count.
func (g *Gateway) TrustsEveryone() bool { return g.HintsFrom == hintsFromEveryone }

// SessionHeaders returns the headers of Sessions.
func (g *Gateway) SessionHeaders() (names []string) {
	for _, name := range sessionid.Headers(sessionid.ParseAll(g.Sessions)) {
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}

// FiltersAffinity reports whether a Wasm filter names the sessions of clients that do not.
func (g *Gateway) FiltersAffinity() bool { return g.AffinityFilter == affinityWasm }

// Model is a model: its names, the files that describe it, and its workers.
type Model struct {
	// Name is the value of "model" in requests.
	Name string `yaml:"name" default:"required"`
	// Path is a Hugging Face folder (tokenizer.json, chat template, config.json) or one .gguf file. A
	// relative path starts at the configuration file's folder. "hf:ORG/MODEL" or "hf:ORG/MODEL@REVISION" downloads
	// these files from a Hugging Face hub, some MB and never weights: see prompt.md. "builtin:sim" is a small vocabulary that is
	// part of Stator. Without a path the model's prompts are not read, and its requests go by session or by load: for
	// models whose vocabulary Stator refuses, such as embedding models and rerankers of BERT's kind. Launch needs it.
	Path string `yaml:"path" default:"prompts are not read"`
	// Aliases are further names for the same model. Engines need not know them: a worker gets the model's own name, where the router reads
	// bodies, and its answers have that name. While no router decides, only engines that were launched with an alias serve it.
	Aliases []string `yaml:"aliases"`
	// Adapters are LoRA adapters of the model's workers. Adapters that engines list in /v1/models, as vLLM does, need
	// no entry. Each has its own cache.
	Adapters []Adapter `yaml:"adapters"`
	// ContextLength is the most tokens of a prompt and its answer, as the engines' max_model_len. A longer prompt
	// is refused. 0 is the largest max_model_len that the engines report, or the length in the model's files if
	// none of them does.
	ContextLength int `yaml:"contextLength"`
	// BlockSize is the number of tokens in a KV block, 1 to 4096. "auto" is the size that the engines report by their events or metrics.
	// Each worker may have its own, up to four for a model, if they have a common divisor of at least 4. The size of an engine's events
	// counts in any case; the log and the doctor name workers whose size is not the number here. Engines that agents start get 16 with
	// "auto".
	BlockSize BlockSize `yaml:"blockSize" default:"auto"`
	// Profile is a folder with the measurements of Dynamo's profiler for these workers (prefill_raw_data and
	// decode_raw_data, .npz or .json). They are the first estimates of how long prompts and decode steps
	// last.
	Profile string `yaml:"profile" file:"relative" default:"a mid-sized model on one data-centre GPU" reload:"routers"`
	// Router configures how a worker is chosen.
	Router Router `yaml:"router"`
	// Migration has streams of answers continued at another worker when their own fails. See docs/migration.md.
	Migration Migration `yaml:"migration"`
	// Targets are the latencies that the planner keeps for this model.
	Targets Targets `yaml:"targets"`
	// IdleAfter is the time without a request after which plans end all engines that agents or Kubernetes run for this model. The next
	// requests wait for an engine that starts for them: see router.queue.hold and docs/planning.md. It needs a planner.connector. 0s
	// keeps min engines.
	IdleAfter Duration `yaml:"idleAfter"`
	// Canary has each router ask an engine for a completion of one token when it has done nothing for so long, at least 1s, and when a
	// request fails there or waits for longer than expected. It finds engines that answer at their health path and compute nothing, which
	// else only a client finds. An engine that does not answer it within 5 s gets no requests until it does. 0s asks for none.
	Canary Duration `yaml:"canary" reload:"routers"`
	// KV is the store of KV blocks that the engines of a node share beside their own caches. Engine sim uses it, and vLLM on processors.
	KV KV `yaml:"kv" reload:"agents"`
	// Launch lists the engines that an agent starts and keeps alive. Whole launches come and go without a restart.
	Launch []Launch `yaml:"launch" reload:"agents" entries:"live"`
	// Workers lists engines that are started elsewhere.
	Workers []Worker `yaml:"workers"`
	// Emitters are caches outside engines whose KV events routers read, such as LMCache's servers: see docs/emitters.md.
	Emitters []Emitter `yaml:"emitters" reload:"routers"`
}

// Adapter is a LoRA adapter of a model.
type Adapter struct {
	// Name is the value of "model" in requests, and the engines' name of the adapter.
	Name string `yaml:"name" default:"required"`
	// EngineName is the name of the adapter in the engines' KV events, if it differs.
	EngineName string `yaml:"engineName" default:"name"`
	// Path is the place at which engines find the adapter: a folder, or a repository on Hugging Face, as the engine sees
	// it. With it, a router has an engine of kind vllm or sim load the adapter when a request comes and no ready worker
	// has it. vLLM needs the option enable-lora, and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment.
	Path string `yaml:"path" default:"the adapter is not loaded"`
}

// Names returns the names that clients may use for the model itself, the main one first.
func (m *Model) Names() []string { return append([]string{m.Name}, m.Aliases...) }

// Migration configures the streams of chats and completions whose worker fails.
type Migration struct {
	// Limit is how often a stream is continued, 0 to 100. 0 sends streams directly to workers, and a stream ends with its worker. Otherwise
	// streams of chats and completions pass through the router, which continues those with temperature 0; a stream that it cannot
	// continue ends with an error event. Engines must return token ids, as vllm and sim do. Routers and the control plane need
	// --relay-address; stator up has it.
	Limit int `yaml:"limit"`
	// Sampled continues streams with other temperatures, too. Their continuation has other tokens than the failed worker would have made.
	Sampled bool `yaml:"sampled"`
}

// Router configures how a worker is chosen.
type Router struct {
	// Policy is the rule of choice: kv (lowest cost), round-robin, random, power-of-two (the less loaded of two that are drawn),
	// least-loaded, direct (the worker that the request names) or session (rendezvous hashing of the session
	// by gateway.sessions).
	Policy string `yaml:"policy"`
	// DecodePolicy is the policy for decode workers, of a model with prefill and decode workers.
	DecodePolicy string `yaml:"decodePolicy" default:"policy"`
	// Prefill selects the workers that compute the prompts of such a model: "auto" compares the costs of both ways,
	// "remote" selects a prefill worker if one is ready and free, and "local" the decode worker.
	Prefill string `yaml:"prefill"`
	// Temperature spreads the choices of the policy kv. 0 always takes the cheapest worker. 1 chooses with
	// probability exp(-cost), costs scaled to 0..1.
	Temperature float64 `yaml:"temperature"`
	// Cost is the function by which the policy kv judges workers. "delay" estimates by how much the delays of the
	// request and of all others grow together if it goes there. "dynamo" is NVIDIA Dynamo's function.
	Cost string `yaml:"cost"`
	// Weights replaces weights of the cost by name. "delay" has firstToken, interference, evict and
	// decode; "dynamo" has prefillLoadScale, overlap, overlapDecay, decode and requests; both have
	// tier.device, tier.host, tier.disk and tier.external. Dynamo's prefillLoadScale of 1 is better raised to
	// 16, for more cache hits and shorter queues. "stator replay" shows what weights do to a trace.
	Weights map[string]float64 `yaml:"weights" default:"the function's"`
	// Busy sets when a rank takes no more requests. A bound that is not set is no bound.
	Busy Busy `yaml:"busy"`
	// Queue sets how requests wait while all ranks that may take them are busy.
	Queue Queue `yaml:"queue"`
}

// CostFunction returns the function that cost and weights name.
func (r *Router) CostFunction() (cost.Function, error) { return cost.New(r.Cost, r.Weights) }

// Busy sets when a rank takes no more requests.
type Busy struct {
	// PrefillTokens bounds the prompt tokens of a rank that are not computed yet: with more it is busy. A
	// higher bound fills the engines' own queues, in which no request can overtake another. 0 is no bound.
	PrefillTokens int64 `yaml:"prefillTokens"`
	// PrefillShare sets the same bound as a share of maxNumBatchedTokens, such as 0.8. 0 is no bound.
	PrefillShare float64 `yaml:"prefillShare"`
	// MaxNumBatchedTokens is the engines' setting max_num_batched_tokens, which prefillShare needs.
	MaxNumBatchedTokens int64 `yaml:"maxNumBatchedTokens"`
	// KVUsage bounds the share of a rank's KV cache that is in use, 0 to 1, by the engine's report or by the
	// router's bookings. A rank above it is busy until both are below nine tenths of it. 0 is no bound.
	KVUsage float64 `yaml:"kvUsage"`
	// Status is the HTTP status of a refusal because all ranks are busy: 429, 503 or 529.
	Status int `yaml:"status"`
}

// Route returns the thresholds as the router takes them.
func (b *Busy) Route() serving.Busy {
	return serving.Busy{
		PrefillTokens: b.PrefillTokens, PrefillShare: b.PrefillShare, MaxNumBatchedTokens: b.MaxNumBatchedTokens,
		KVUsage: b.KVUsage, Status: b.Status,
	}
}

// Queue sets how requests wait while all ranks that may take them are busy. When it changes, requests that
// wait keep their place.
type Queue struct {
	// MaxWait is the longest time that a request may wait. 0s means that no request waits: one that finds all
	// ranks busy is refused. It must be at least 10s less than gateway.idleTimeout, because Envoy ends the
	// request there.
	MaxWait Duration `yaml:"maxWait"`
	// Hold is the longest time that a request may wait for an engine that starts because of models[].idleAfter. It must be longer than a
	// start, and at least 10s less than gateway.idleTimeout. 0s means that such a request is refused. It
	// starts an engine all the same.
	Hold Duration `yaml:"hold" default:"5m, or less if gateway.idleTimeout asks for it"`
	// Requests bounds how many requests may wait, at least 1. The request that reaches a limit is accepted, and
	// the next one is refused.
	Requests int `yaml:"requests"`
	// Tokens bounds the prompt tokens of waiting requests. 0 is no bound.
	Tokens int `yaml:"tokens"`
	// CachedTokens bounds the cached prompt tokens of waiting requests, as counted when they came. 0 is no
	// bound.
	CachedTokens int `yaml:"cachedTokens"`
	// Order is the order within the queue. "fcfs" serves first the request that came first; a priority is a
	// head start in seconds. "lcfs" serves first the request that came last. "wspt" serves first the
	// request with the fewest tokens to compute, weighed by priority.
	Order string `yaml:"order"`
	// Fair serves tenants alike, by tokens to compute. A tenant is the header x-stator-tenant if
	// gateway.hints is "headers", else "user" in the body.
	Fair bool `yaml:"fair"`
	// Programs has a step of a program of an agent whose context is not cached wait while the contexts of other programs fill the caches of
	// the workers. All steps of a program wait for that for at most half of maxWait. A program is a session: see gateway.sessions. It needs
	// workers whose cache sizes are known.
	Programs bool `yaml:"programs"`
	// Classes share ranks by deficit round robin. Requests that name no class go to the first one.
	Classes []Class `yaml:"classes" default:"one class"`
}

// Class is a share of the ranks, for requests that wait.
type Class struct {
	// Name is the name that requests give in nvext.router.class or the header x-stator-class.
	Name string `yaml:"name" default:"required"`
	// Quantum is the class's share against others', in prompt tokens to compute at each of its turns.
	Quantum int `yaml:"quantum"`
	// Order is the order within the class: "fcfs", "lcfs" or "wspt".
	Order string `yaml:"order" default:"the queue's"`
	// Requests bounds how many requests of this class may wait. 0 is no bound but the queue's.
	Requests int `yaml:"requests"`
	// Tokens bounds the prompt tokens of waiting requests of this class. 0 is no bound but the queue's.
	Tokens int `yaml:"tokens"`
	// CachedTokens bounds the cached prompt tokens of waiting requests of this class. 0 is no bound but the
	// queue's.
	CachedTokens int `yaml:"cachedTokens"`
}

// Launch is a kind of engine that an agent starts, and how many of it.
type Launch struct {
	// Engine is the kind of engine: sim (simulated), llamacpp (llama.cpp's server from the xllamacpp wheel), vllm, sglang, trtllm
	// (TensorRT-LLM's trtllm-serve) or exec (any command).
	Engine string `yaml:"engine" default:"required"`
	// Count is the number of processes, 1 to 256. With a planner that scales, it is their number at the start.
	Count int `yaml:"count" reload:"live"`
	// Min and Max bound the number of processes that a plan may ask for here. Equal bounds mean a fixed number.
	Min int `yaml:"min" default:"0 with idleAfter, else 1, or count if max is not set" reload:"live"`
	// Max is at most 256.
	Max int `yaml:"max" default:"count" reload:"live"`
	// GPU is the kind of accelerator, such as "H200". Without a profile the planner estimates the engines' speed from its data sheet and
	// from the model's files. See "stator plan --help" for the names.
	GPU string `yaml:"gpu" default:"none" reload:"live"`
	// StartUp is the time from an engine's start until it is ready, as first assumed. Starts that are observed replace it.
	StartUp Duration `yaml:"startUp" reload:"live"`
	// Role is the part of a request that these workers serve: "aggregated" is all of it. Of a model with "prefill" and "decode"
	// workers, one computes the prompt and another one fetches its KV cache and decodes: see docs/disaggregation.md.
	Role string `yaml:"role"`
	// Target is the object of Kubernetes whose replicas these workers are, with planner.connector kubernetes: "deployment/NAME",
	// "statefulset/NAME", "leaderworkerset/NAME", or "GROUP/VERSION/KIND/NAME" of any other kind with the subresource scale. It is in the
	// namespace of the pods. No agent starts these workers; the planner takes their GPUs and their speed from engine, args and gpu. Count
	// is their number before the first plan.
	Target string `yaml:"target" default:"agents start them" reload:"the planner"`
	// Node is the node agent that starts them.
	Node string `yaml:"node" default:"agents without a name, and stator up"`
	// Command is the command line for exec. {host}, {port}, {name} and {model} are filled in: the engine must
	// listen on that host and port.
	Command []string `yaml:"command"`
	// Args are the engine's settings. For sim: blocks (KV capacity, default 16384), engineSpeedup (time is divided by it, default
	// 1), seed, maxNumSeqs, maxNumBatchedTokens, startup (a duration), streamInterval (tokens in one write of a stream, default 1),
	// answerTokens (mean length of answers, if max_tokens does not end them before), thinkTokens (tokens of an answer that are
	// thinking), tlsCert, tlsKey and tlsClientCA (files of its HTTP server), tokenScale (each token lasts as long as this many), transfer
	// (of KV caches: nixl, p2p, bootstrap or context, which are the handshakes of vLLM, SGLang and TensorRT-LLM; default nixl with a
	// role; without one only p2p is possible). For llamacpp: ctx (tokens, default 8192), slots (default 4), threads. For vllm,
	// sglang and trtllm: command-line options by name, such as max-model-len, without the options that Stator sets; a map or a list
	// becomes JSON. With data-parallel-size of vllm, and dp-size or attn-dp-size of sglang, a worker has so many ranks. For trtllm,
	// the key options is a map that becomes the file of --extra_llm_api_options.
	Args map[string]any `yaml:"args"`
	// Python is the interpreter that runs llamacpp, vllm, sglang and trtllm: a path, or a name in PATH. The engine's package must be
	// installed for it.
	Python string `yaml:"python" default:"the virtual environment .venv beside the program's folder, else python3"`
	// Env are environment variables of these engines, beside the agent's variables for paths, locale, proxies, GPUs and
	// engines.
	Env map[string]string `yaml:"env"`
	// Dir is the folder in which these engines run, and to which relative paths in args and command refer.
	Dir string `yaml:"dir" default:"the folder of the agent"`
	// GPUs are the devices of these engines, as CUDA_VISIBLE_DEVICES has them: indexes in the order of the PCI bus, or UUIDs.
	// Each of count gets as many as it needs, in this order. For vllm that is the product of the options tensor-parallel-size,
	// pipeline-parallel-size and data-parallel-size, for sglang of tp-size, pp-size and dp-size, and for trtllm of tp_size,
	// pp_size and cp_size. The list must have exactly as many for all of count; engines share a device that is there twice.
	// Without the list, these engines get devices that no other launch lists: of the agent's CUDA_VISIBLE_DEVICES, or else of
	// the host. If there are none, nothing is set.
	GPUs []any `yaml:"gpus"`
	// Survive has these engines run on when their agent ends or is killed. The next agent with the same
	// --state-dir adopts them, unless the launch has changed. `stator up` stops them all the same.
	Survive bool `yaml:"survive" reload:"agents"`
	// Taints are marks of these workers, such as "long-context", that requests may require or prefer: see docs/routing.md. The taints
	// "zone=…", "rack=…" and "nvlink=…" name the place of the workers, by which the times of transfers are learned and pairs of
	// workers chosen: see docs/disaggregation.md.
	Taints []string `yaml:"taints"`
}

// KV is the store of KV blocks of a model, on each node whose agent launches engines of it: see docs/kv.md.
type KV struct {
	// HostBytes is the host memory for blocks on each node. 0 means that there is no store.
	HostBytes int64 `yaml:"hostBytes"`
	// PeerTokenFile is a file with the secret that all nodes of the model share, of 16 or more characters. With it, the host
	// memory of other nodes with this model is searched before the disk. Nodes find each other by the bus. It also authenticates
	// the blocks in the bucket: a node loads only blocks that nodes with the same secret have written, or blocks without a secret
	// if it has none itself.
	PeerTokenFile string `yaml:"peerTokenFile" file:"relative" default:"no other node is used; required with peers or peerListen"`
	// PeerListen is the address on which this node sends blocks of its host memory to others, such as "10.0.0.1:7600", or ":7600" for all
	// addresses of this host. Port 0 takes a free one. Nodes send each other blocks by TLS, and prove that they have the token.
	PeerListen string `yaml:"peerListen" default:"no other node is served"`
	// PeerAddress is the address, host:port, that other nodes are given, if they cannot reach the address of peerListen: behind
	// NAT, for example.
	PeerAddress string `yaml:"peerAddress" default:"the address of peerListen; on all addresses, the IP of --advertise-address"`
	// Peers are the addresses, host:port, of other nodes' peerListen, beside the ones that are found by the bus. This node's own
	// address may be among them, so that all nodes can have one list.
	Peers []string `yaml:"peers"`
	// PeerTransport is the way that blocks come from peers: "tcp", or "nixl" for NIXL if both nodes have it, and TCP if NIXL
	// fails. Measure first: docs/nixl.md.
	PeerTransport string `yaml:"peerTransport"`
	// NIXLLibrary is the path of libnixl_capi.so, of a folder or of a Python environment with it.
	NIXLLibrary string `yaml:"nixlLibrary" file:"relative" default:"$NIXL_LIB_DIR, then $VIRTUAL_ENV"`
	// DiskPath is a folder for blocks on a local disk, which belongs to one agent.
	DiskPath string `yaml:"diskPath" file:"relative" default:"no disk"`
	// DiskBytes is the size of the file in it, which is reserved at once.
	DiskBytes int64 `yaml:"diskBytes"`
	// DiskWrite selects the blocks that are copied to the disk: "all", or only "reused" ones, which were stored or found a
	// second time lately.
	DiskWrite string `yaml:"diskWrite"`
	// Bucket is the bucket of an S3 server for blocks that all nodes share. Its credentials come from the environment:
	// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the role of the instance or pod.
	Bucket string `yaml:"bucket" default:"no object store"`
	// Endpoint is the URL of the server, such as "http://minio:9000".
	Endpoint string `yaml:"endpoint" default:"required with bucket"`
	// Region is part of the signature of requests.
	Region string `yaml:"region"`
	// PathStyle puts the bucket into the path of requests instead of the host's name, as most servers outside of Amazon need it.
	PathStyle bool `yaml:"pathStyle"`
	// Prefix begins the names of all objects.
	Prefix string `yaml:"prefix"`
	// ObjectBytes is the size above which a node deletes the oldest objects that it has written. 0 is no bound; all are deleted after
	// seven days.
	ObjectBytes int64 `yaml:"objectBytes"`
	// ObjectWrite selects the blocks that are copied to the object store: "all", or only "reused" ones, which were stored or
	// found a second time lately.
	ObjectWrite string `yaml:"objectWrite"`
}

// Emitter is a cache outside engines that publishes its blocks in vLLM's format over ZMQ, as LMCache's coordinator does.
type Emitter struct {
	// Name is unique among the emitters of the file and matches [a-z0-9-]+.
	Name string `yaml:"name" default:"required"`
	// KVEvents is the ZMQ endpoint on which it publishes, such as "tcp://10.0.0.1:5557".
	KVEvents string `yaml:"kvEvents" default:"required"`
	// KVReplay is the ZMQ endpoint on which it replays. Without it, a gap or a lost connection leaves the emitter stale until it restarts.
	KVReplay string `yaml:"kvReplay" default:"none"`
	// Node is the node whose workers can load its blocks: the part before the dot in the names of workers with an agent.
	Node string `yaml:"node" default:"all workers of the model"`
	// Workers are the names of the workers that can load its blocks, in place of a node.
	Workers []string `yaml:"workers" default:"all workers of the model"`
	// Topic is the topic of its messages. Messages on the endpoint with other topics are of other caches.
	Topic string `yaml:"topic" default:"kv@node:NODE@MODEL with node, else kv@pool:…@MODEL; required with workers"`
}

// Worker is an engine that is started elsewhere.
type Worker struct {
	// Name is unique in the file and matches [a-z0-9-]+.
	Name string `yaml:"name" default:"required"`
	// Address is the IP and port of the engine's HTTP server, or a DNS name and the port: "10.0.0.1:8000", "[fd00::1]:8000",
	// "engine-0.engines:8000". Each router and control plane looks a name up by itself, again every 30 s, and every few
	// seconds while the worker is not ready. A name is one engine: of several IPs the lowest is used, IPv4 first.
	Address string `yaml:"address" default:"required"`
	// Role is the part of a request that these workers serve: "aggregated" is all of it. Of a model with "prefill" and "decode"
	// workers, one computes the prompt and another one fetches its KV cache and decodes: see docs/disaggregation.md.
	Role string `yaml:"role"`
	// Transfer is the way that KV caches get from prefill workers to decode workers: "nixl" is vLLM's NixlConnector, "p2p"
	// vLLM's OffloadingConnector with a tier of that type, "bootstrap" SGLang, "context" TensorRT-LLM's
	// disaggregated_params, and "none" no transfer. All prefill and decode workers of a model must have the same. An
	// aggregated worker with "p2p" lets others pull prompts from its cache.
	Transfer string `yaml:"transfer" default:"none for aggregated workers, else the engine's: nixl, bootstrap or context"`
	// TransferAddress is the host and port that other engines connect to with transfer p2p or bootstrap: the address of
	// vLLM's p2p tier, whose rank r has the same with its port raised by r, or of SGLang's bootstrap server.
	TransferAddress string `yaml:"transferAddress" default:"with bootstrap the host of address, and port 8998"`
	// Engine is the kind of engine: vllm, sglang, trtllm, llamacpp, dynamo, sim or exec. It sets which metrics are read, and
	// the dialect of its KV events. "dynamo" is the frontend of one worker of NVIDIA Dynamo: see docs/engines/dynamo.md.
	Engine string `yaml:"engine"`
	// KVEvents is the ZMQ endpoint on which rank 0 publishes KV events, such as "tcp://10.0.0.1:5557". "auto"
	// asks the engine for the endpoints of all ranks, which vLLM answers, and reads ports 5557 and up of one that does not.
	// "bind:tcp://*:5557" waits for an engine that connects. TensorRT-LLM's is "http://10.0.0.1:8000/kv_cache_events", which only one
	// reader may use. Without it, the cache's content is predicted from the requests that were sent there. A host that is the name in
	// address is the IP that address has; other names are looked up at each connection.
	KVEvents string `yaml:"kvEvents"`
	// KVReplay is the ZMQ endpoint on which rank 0 replays its KV events. Without it, a gap or a lost
	// connection leaves the rank stale until the engine restarts or clears its cache.
	KVReplay string `yaml:"kvReplay"`
	// Ranks is the number of data-parallel ranks, 1 to 1024.
	Ranks int `yaml:"ranks"`
	// Weight is the worker's share of the traffic that Envoy routes without a decision, and of the traffic that weighted
	// policies route, 1 to 1000. A plan on the bus may set another.
	Weight int `yaml:"weight"`
	// Blocks is the KV capacity of a rank in blocks. 0 is the capacity that the metrics of vLLM, SGLang or Dynamo report.
	Blocks int `yaml:"blocks"`
	// HealthPath is the path at which routers and control planes ask the engine for its health, each once a second. "none"
	// asks nothing: the worker is ready until requests fail there. For engine dynamo the default is
	// "/v1/models/NAME/ready", because a frontend without its worker answers 200 at /health.
	HealthPath string `yaml:"healthPath" default:"/health"`
	// Taints are marks of the worker, such as "long-context", that requests may require or prefer: see docs/routing.md. The taints
	// "zone=…", "rack=…" and "nvlink=…" name the place of the worker, by which the times of transfers are learned and pairs of workers
	// chosen: see docs/disaggregation.md.
	Taints []string `yaml:"taints"`
}

// Index bounds the memory of the KV cache index, and sets when its content is checked.
type Index struct {
	// MaxBytes bounds the index of a router, and that of an agent. At the bound the blocks that were used least recently are
	// dropped, which lowers the hit rate and never names a wrong worker. From the agent's index a router that starts late gets a
	// snapshot, which then lacks blocks. Snapshots in transfer need at most as much again.
	MaxBytes int64 `yaml:"maxBytes" reload:"routers, agents"`
	// DriftTokens is the number of prompt tokens, at least 1000, for which the cached tokens that decisions promised and the cached
	// tokens that an engine reports are compared at a time. If they differ by more than a quarter of the prompt tokens, the worker's
	// cache state is rebuilt.
	DriftTokens int64 `yaml:"driftTokens" reload:"routers"`
}

// Prompts bounds the memory of prompts.
type Prompts struct {
	// MemoryBytes bounds the memory of rendered prompts, which makes the next turn of a conversation cost only
	// its new text. 64 MiB hold some 10 million tokens; -1 turns it off. At the bound the prompts that were
	// used least recently are dropped, and are tokenized again when they come again.
	MemoryBytes int64 `yaml:"memoryBytes" reload:"routers"`
}

// Decisions configures the log of the router's decisions.
type Decisions struct {
	// Log is a file to which every decision, and the end of its request, is appended as a line of JSON. "stator
	// replay --decisions" plays it. It holds hashes of prompts, no text and no token ids.
	Log string `yaml:"log" file:"relative" default:"none" reload:"routers"`
	// LogBytes bounds the file, at least 65536. A full one is renamed by appending ".1", and replaces the last
	// file of that name.
	LogBytes int64 `yaml:"logBytes" reload:"routers"`
	// LinesPerSecond has routers log a line for each decision, at most so many a second, up to 1000: the picked worker, the next best and
	// by how much it costs more, the cached tokens, and the cache state. 0 logs none.
	LinesPerSecond int `yaml:"linesPerSecond" reload:"routers"`
	// HashEvery is the number of blocks of a prompt that share one hash, 1 to 65536. Fewer show more
	// exactly where prompts part, in longer lines.
	HashEvery int `yaml:"hashEvery" reload:"routers"`
}

// Tracing configures the spans of requests: see docs/operations.md.
type Tracing struct {
	// Endpoint is the receiver of OTLP: "http://host:4318" or "https://host" for OTLP over HTTP, and "grpc://host:4317" for OTLP over gRPC
	// without TLS. A receiver that is away or slow delays no request; its spans are lost and counted. Envoys use it, too, except over
	// "https".
	Endpoint string `yaml:"endpoint" default:"none"`
	// Ratio is the share of the requests without a header traceparent whose spans are exported, 0 to 1. A request with that header
	// follows the header's flag. The spans of refused requests, and of answers with a status of 500 or more, are always exported.
	Ratio float64 `yaml:"ratio"`
	// SlowerThan has the spans of all requests exported whose first token takes at least so long, although their engines' spans are not.
	// 0s is none.
	SlowerThan Duration `yaml:"slowerThan"`
}

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

// Targets are bounds of latencies. 0s is no bound.
type Targets struct {
	// TTFT is the time to the first token.
	TTFT Duration `yaml:"ttft" default:"the value of planner"`
	// ITL is the mean time between the tokens of a request.
	ITL Duration `yaml:"itl" default:"the value of planner"`
	// E2E is the time of a whole request.
	E2E Duration `yaml:"e2e" default:"the value of planner"`
	// Quantile is the share of requests that are to be within the bounds, above 0 and below 1.
	Quantile float64 `yaml:"quantile" default:"the value of planner"`
}

// Planner configures how many workers each model has.
type Planner struct {
	// Algorithm decides. "configured" means the configured numbers. "sla" keeps the targets: it forecasts demand, and computes
	// the workers for it from a profile or an estimate. "reactive" is the rule of Kubernetes' horizontal pod autoscaler. See
	// docs/planning.md.
	Algorithm string `yaml:"algorithm"`
	// Connector carries plans out: "local" has agents start and stop engines, "kubernetes" scales the objects of launch[].target,
	// "virtual" publishes the numbers on the bus for a program of yours, and "none" carries nothing out.
	Connector string `yaml:"connector" reload:"the planner"`
	// UpOnly has connector kubernetes raise numbers of replicas and lower none, and drain no worker.
	UpOnly bool `yaml:"upOnly"`
	// Advisory makes plans and shows them, and carries nothing out: no worker is started, drained or weighted.
	Advisory bool `yaml:"advisory"`
	// Interval is the time between two plans, 1s to 10m.
	Interval Duration `yaml:"interval" reload:"the planner"`
	// TTFT is the longest time to the first token. 0s is no bound. A shorter one needs more workers.
	TTFT Duration `yaml:"ttft"`
	// ITL is the longest mean time between the tokens of a request. 0s is no bound.
	ITL Duration `yaml:"itl"`
	// E2E is the longest time of a whole request. 0s is no bound.
	E2E Duration `yaml:"e2e"`
	// Quantile is the share of requests that are to be within these bounds, above 0 and below 1.
	Quantile float64 `yaml:"quantile"`
	// Mode selects the need that counts: "throughput" is the forecast demand, "load" the engines' present work, and "both" the
	// greater need.
	Mode string `yaml:"mode"`
	// Forecast is the model of forecasts: constant, kalman, arima, seasonal, or auto, which uses at each horizon the one that was nearest
	// lately.
	Forecast string `yaml:"forecast"`
	// Headroom is the quantile of the forecast that must be served, above 0 and below 1: 0.5 is the expected demand. A higher one
	// needs more workers and misses targets less often. For targets of a quantile above 0.9 it is higher than this.
	Headroom float64 `yaml:"headroom"`
	// DownAfter is the time for which a pool keeps the most workers that it needed. A shorter time saves GPUs and starts
	// workers more often.
	DownAfter Duration `yaml:"downAfter"`
	// DrainTimeout is the longest time that a worker that is no longer needed may take to end its requests. Then it is stopped
	// all the same.
	DrainTimeout Duration `yaml:"drainTimeout"`
	// MinGPUs is the least number of GPUs of all workers that a plan asks for. 0 is no bound.
	MinGPUs int `yaml:"minGPUs"`
	// MaxGPUs is the greatest number of GPUs. If it does not suffice, all pools get a part of their need. 0 is no bound.
	MaxGPUs int `yaml:"maxGPUs"`
	// MaxWatts bounds the power of all workers whose gpu is set. 0 is no bound.
	MaxWatts float64 `yaml:"maxWatts"`
	// Warm is a file with earlier rates of requests per second, one a line for each interval, the newest last, with which forecasts
	// begin. It needs a single model.
	Warm string `yaml:"warm" file:"relative" default:"none" reload:"the planner"`
	// Log is a file to which every observation and its plan are appended as a line of JSON. "stator replay --plan" makes the plans again.
	// A file of 256 MiB is renamed by appending ".1", and replaces the last file of that name.
	Log string `yaml:"log" file:"relative" default:"none" reload:"the planner"`
	// Prometheus supplies demand instead of the routers on the bus: from the metrics of NVIDIA Dynamo's frontends.
	Prometheus Prometheus `yaml:"prometheus"`
}

// Prometheus is a server with the metrics of NVIDIA Dynamo's frontends.
type Prometheus struct {
	// URL is the server, such as "http://prometheus:9090". Without it demand comes from the routers on the bus.
	URL string `yaml:"url" default:"none" reload:"the planner"`
	// TokenFile is a file with a bearer token. It is read again at every request.
	TokenFile string `yaml:"tokenFile" file:"relative" default:"none" reload:"the planner"`
	// CAFile has the certificates that may have signed the server's, in PEM. Without it the system's certificates count.
	CAFile string `yaml:"caFile" file:"relative" default:"none" reload:"the planner"`
	// Namespace is Dynamo's namespace of the frontends' metrics.
	Namespace string `yaml:"namespace" default:"any" reload:"the planner"`
}

// BlockSize is a number of tokens in a KV block, written as a number or "auto".
type BlockSize int

// AutoBlockSize is the BlockSize "auto". It takes no size below MinAutoBlockSize from an engine: an index of single tokens is too large.
const (
	AutoBlockSize    BlockSize = 0
	MinAutoBlockSize int       = 4
)

// LaunchBlockSize returns the tokens in a block of engines that agents start.
func (m *Model) LaunchBlockSize() int {
	if m.BlockSize == AutoBlockSize {
		return serving.DefaultBlockSize
	}
	return int(m.BlockSize)
}

// Duration is a time.Duration written as "250ms".
type Duration time.Duration

// Std returns the duration as the standard library has it.
func (d Duration) Std() time.Duration { return time.Duration(d) }

func (d Duration) String() string { return time.Duration(d).String() }
