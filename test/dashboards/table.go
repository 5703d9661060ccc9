package dashboards

import "strings"

// Dashboard is one file of examples/grafana.
type Dashboard struct {
	File    string // the name of the file without .json; the dashboard's uid is "stator-" and this name
	Title   string
	Purpose string // for whom it is
	Panels  []Panel
}

// Panel is a chart over time.
type Panel struct {
	Title   string
	Unit    string // a unit of Grafana's, such as "s" or "percentunit"
	Why     string // what an operator learns from it, and does when it looks bad; the panel's description
	Queries []Query
}

// Query is a line, or several, of a panel. In Expr, $namespace and $model are regular expressions, and $__rate_interval is a duration that
// Grafana computes from the scrape interval.
type Query struct {
	Expr   string
	Legend string
	Empty  string // why it returns nothing while nothing is wrong; empty if it always returns data
}

// All returns the dashboards. Figures of the whole fleet, which every router has, are combined by max, and figures of the requests of a
// router by sum.
func All() []Dashboard { return []Dashboard{fleet, routing, planner} }

// selectors are the short forms in the queries below.
var selectors = strings.NewReplacer(
	"{@model", `{namespace=~"$namespace", model=~"$model"`,
	"{@", `{namespace=~"$namespace"`,
	"[@]", "[$__rate_interval]",
)

// ask returns a query that always has data.
func ask(expr, legend string) Query { return askFault(expr, legend, "") }

// askFault returns a query that has none while nothing is wrong, for this reason.
func askFault(expr, legend, empty string) Query {
	return Query{Expr: selectors.Replace(expr), Legend: legend, Empty: empty}
}

// firstTokens is the histogram of the times to the first token of each model.
const firstTokens = `sum by (model, le) (namespace_model_le:stator_request_first_token_seconds_bucket:rate5m{@model})`

var fleet = Dashboard{
	File: "fleet", Title: "Stator: fleet", Purpose: "Are clients served, how fast, and which engine is bad?",
	Panels: []Panel{
		{"Answers per second, by model", "reqps",
			"The traffic of each model. If it falls while clients still send, look at refusals and failures beside it.",
			[]Query{ask(`sum by (namespace, model) (namespace_model_code:stator_request_answers:rate5m{@model})`, "{{model}}")}},
		{"Refused and failed requests per second", "reqps",
			"Requests without an answer. A refusal has its reason: for busy and queue_full add engines, for no_ready_worker run " +
				"stator status. For status 5xx find the engine with stator explain, and read its log.",
			[]Query{
				askFault(`sum by (model, reason) (rate(stator_request_refusals_total{@model}[@]))`,
					"{{model}} refused: {{reason}}", "a model has a series for a reason after its first refusal"),
				askFault(`sum by (model, code) (namespace_model_code:stator_request_answers:rate5m{@model, code=~"5xx|none"})`,
					"{{model}} status {{code}}", "a worker has a series for a status after its first answer with it"),
			}},
		{"Time to the first token, by model", "s",
			"What clients of streams wait. If the median rises, add engines or see the queue; if only the 99th percentile does, see " +
				"the slowest workers.",
			[]Query{
				ask(`histogram_quantile(0.5, `+firstTokens+`)`, "{{model}} median"),
				ask(`histogram_quantile(0.99, `+firstTokens+`)`, "{{model}} 99 %"),
			}},
		{"Mean time of answers, the ten slowest workers", "s",
			"One worker far above the others of its model has a bad GPU or a noisy neighbour: drain it with stator drain WORKER, " +
				"and look at its engine.",
			[]Query{ask(`topk(10, namespace_model_worker:stator_request_duration_seconds:mean5m{@model})`, "{{worker}}")}},
		{"Queued requests, by model and class", "short",
			"Requests that wait because all their ranks are busy. If it grows for minutes, add engines, or raise router.busy if the " +
				"engines have room.",
			[]Query{ask(`sum by (model, class) (stator_route_queue_requests{@model})`, "{{model}} {{class}}")}},
		{"Workers by health", "short",
			"Workers that are down or half-open get no requests, or few. Read the agent's log for the last line of an engine that " +
				"is down.",
			[]Query{ask(`max by (health) (stator_health_workers{@})`, "{{health}}")}},
		{"Workers that are missing", "short",
			"Workers that agents should run and do not. Run stator status: it names them, and the node.",
			[]Query{ask(`max by (model, node, role) (stator_fleet_expected_workers{@model}) - `+
				`max by (model, node, role) (stator_fleet_present_workers{@model})`,
				"{{model}} {{role}} {{node}}")}},
		{"Connections and refused configurations", "short",
			"0 means that a part has no connection to the bus: check the bus. If an Envoy refuses a configuration, run stator " +
				"doctor.",
			[]Query{
				ask(`min by (instance) (stator_bus_connected{@})`, "{{instance}} has the bus"),
				ask(`sum by (type) (increase(stator_xds_nacks_total{@}[@]))`, "refused by Envoy: {{type}}"),
			}},
	},
}

var routing = Dashboard{
	File: "routing", Title: "Stator: routing quality", Purpose: "Do prompts find their caches, and are decisions obeyed?",
	Panels: []Panel{
		{"Cached share of prompt tokens, by model", "percentunit",
			"The share of prompts that engines need not compute. If it falls, see the states of caches and the texts that break " +
				"prefixes below.",
			[]Query{ask(`namespace_model:stator_request_cached_tokens:ratio_rate5m{@model}`, "{{model}}")}},
		{"Cached tokens per second: promised and found", "short",
			"What decisions promised, and what engines counted for all their clients. Each worker has both after index.driftTokens " +
				"of prompts. If less is found than promised, run stator doctor.",
			[]Query{
				ask(`sum(rate(stator_feed_promised_cached_tokens_total{@}[@]))`, "promised"),
				ask(`sum(rate(stator_feed_reported_cached_tokens_total{@}[@]))`, "found"),
			}},
		{"Requests per second, by outcome", "reqps",
			"misdirected and unpicked mean that an Envoy does not obey, or that the router was late: run stator doctor. failed and " +
				"retried: see the fleet.",
			[]Query{ask(`sum by (outcome) (rate(stator_accesslog_requests_total{@}[@]))`, "{{outcome}}")}},
		{"Time of decisions", "s",
			"What routing adds to a request, without waiting in a queue. Give the router more CPU if the 99th percentile is above a " +
				"few milliseconds.",
			[]Query{
				ask(`histogram_quantile(0.5, sum by (le) (rate(stator_extproc_decision_duration_seconds_bucket{@}[@])))`, "median"),
				ask(`histogram_quantile(0.99, sum by (le) (rate(stator_extproc_decision_duration_seconds_bucket{@}[@])))`, "99 %"),
			}},
		{"Ranks by the state of their caches", "short",
			"Prompts find their blocks only on exact ranks. For stale ones the reason is here, and docs/operations.md has the " +
				"action for each; none means that an engine publishes no events.",
			[]Query{
				ask(`max by (state) (stator_feed_ranks{@})`, "{{state}}"),
				askFault(`max by (reason) (stator_feed_stale_ranks{@}) > 0`,
					"stale: {{reason}}", "no rank is stale"),
			}},
		{"Requests per second whose prompt was not read, by reason", "reqps",
			"They go by session or load, and find caches by chance. docs/routing.md has the reasons; for template and tool look at " +
				"the router's log.",
			[]Query{ask(`sum by (reason) (rate(stator_route_unread_requests_total{@}[@]))`, "{{reason}}")}},
		{"Tokens per second that changing texts keep from caches, the five worst places", "short",
			"A date or an identifier near the beginning of prompts. Have the client move it to the end: stator doctor names the " +
				"place.",
			[]Query{ask(`topk(5, sum by (model, message, role, kind) (rate(stator_route_prefix_breaker_tokens_total{@model}[@])))`,
				"{{model}} {{role}} message {{message}}: {{kind}}")}},
		{"Caches of the fleet as a share of the index's room", "percentunit",
			"Above 100 % the index forgets blocks that engines still have. Raise index.maxBytes.",
			[]Query{ask(`max by (instance) (stator_index_fleet_pairs{@} / stator_index_capacity_pairs{@})`, "{{instance}}")}},
	},
}

// leads keeps the figures of the planner that leads: the others make plans, too, and publish none.
const leads = ` and on (namespace, instance) (stator_planner_leading{@} == 1)`

var planner = Dashboard{
	File: "planner", Title: "Stator: planner", Purpose: "Is the plan right, and is it carried out?",
	Panels: []Panel{
		{"Workers: planned, ready, draining", "short",
			"If fewer are ready than planned for longer than an engine's start, see the engines that are down below. Reasons are in " +
				"/debug/plan.",
			[]Query{
				ask(`stator_planner_replicas{@model}`+leads, "{{model}} {{role}} planned"),
				ask(`stator_planner_ready{@model}`+leads, "{{model}} {{role}} ready"),
				ask(`stator_planner_draining{@model}`+leads, "{{model}} {{role}} draining"),
			}},
		{"Requests per second: now, planned for, answered", "reqps",
			"If the planner expects much less than is answered, its forecast lags: compare the algorithms with stator replay " +
				"--plan.",
			[]Query{
				ask(`stator_planner_requests_per_second{@model}`+leads, "{{model}} {{role}} now"),
				ask(`stator_planner_expected_requests_per_second{@model}`+leads, "{{model}} {{role}} planned for"),
				ask(`sum by (model) (namespace_model_code:stator_request_answers:rate5m{@model})`, "{{model}} answered"),
			}},
		{"Planners that lead, and figures that are missing", "short",
			"There should be one leader: with none, start a planner or check the bus, and the last plan stays. With " +
				"missing figures the plan is made from fewer observations: /debug/plan names them.",
			[]Query{
				ask(`sum(stator_planner_leading{@})`, "leaders"),
				ask(`stator_planner_unknown{@model}`+leads, "{{model}} {{role}} missing"),
			}},
		{"Age of the plan", "s",
			"There is a plan every planner.interval. If it gets older, no planner leads, or it cannot publish: read its log.",
			[]Query{ask(`time() - max(stator_planner_last_plan_timestamp_seconds{@})`, "age")}},
		{"Plans per minute that were not made, carried out or applied", "short",
			"error at the planner: read its log. refused at a router or a control plane: it has another release or configuration; " +
				"run stator status.",
			[]Query{
				ask(`60 * sum by (result) (rate(stator_planner_plans_total{@, result="error"}[@]))`, "plan: {{result}}"),
				ask(`60 * sum by (result) (rate(stator_planner_carried_total{@, result="error"}[@]))`, "connector: {{result}}"),
				ask(`60 * sum by (result) (rate(stator_plan_received_total{@, result="refused"}[@]))`, "receiver: {{result}}"),
			}},
		{"Engines that are down", "s",
			"How long an engine that should run has not been ready. Longer than its start: the agent's log and /debug/agent have " +
				"its last output and a remedy.",
			[]Query{ask(`max by (worker) (stator_agent_engine_down_seconds{@})`, "{{worker}}")}},
		{"Starts of engines in an hour, the five most", "short",
			"An engine that starts again and again fails on start: run the command in the agent's log by hand.",
			[]Query{ask(`topk(5, sum by (worker) (increase(stator_agent_engine_starts_total{@}[1h])))`, "{{worker}}")}},
		{"Kubernetes objects that the planner does not scale now", "short",
			"Another controller sets their number, or it cannot be set: stator planner --dry-run has the reason.",
			[]Query{askFault(`max(stator_planner_held_targets{@})`,
				"objects", "only planner.connector: kubernetes has this figure")}},
	},
}
