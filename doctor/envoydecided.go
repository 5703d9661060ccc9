package doctor

// decisionPath is a connection manager with the filter that asks routers.
type decisionPath struct {
	*managerSeen
	at      int // of the filter
	marks   int // names by which it is recognised as Stator's
	filter  node
	config  node // of the filter
	name    string
	subject string
}

// decided is the filter's configuration on a route.
type decided struct {
	routeSeen
	enabled   bool
	explicit  bool // the route, or a level above it, enables it
	mode      node
	metadata  node
	service   node
	allowFail bool
}

// decisions returns the configuration of the filter on each route.
func (p *decisionPath) decisions() (all []decided) {
	for _, r := range p.routes {
		d := decided{routeSeen: r, enabled: !p.filter.isTrue("disabled"), mode: p.config.at("processing_mode"),
			metadata: p.config.at("metadata_options"), service: p.config.at("grpc_service"),
			allowFail: p.config.isTrue("failure_mode_allow")}
		for _, level := range []node{r.all, r.host, r.route} {
			d.apply(level.at("typed_per_filter_config", p.name))
		}
		all = append(all, d)
	}
	return all
}

// apply overrides the configuration by the configuration of a level of the routes.
func (d *decided) apply(typed node) {
	config, kind := typed.config()
	if kind == "FilterConfig" {
		if config.isTrue("disabled") {
			d.enabled, d.explicit = false, false
			return
		}
		d.enabled, d.explicit = true, true
		config, kind = config.at("config").config()
	}
	if kind != "ExtProcPerRoute" {
		return
	}
	if config.isTrue("disabled") {
		d.enabled, d.explicit = false, false
		return
	}

	d.enabled, d.explicit = true, true
	overrides := config.at("overrides")
	for key, field := range map[string]*node{
		"processing_mode": &d.mode, "metadata_options": &d.metadata, "grpc_service": &d.service,
	} {
		if overrides.has(key) {
			*field = overrides.at(key)
		}
	}
	if overrides.has("failure_mode_allow") {
		d.allowFail = overrides.isTrue("failure_mode_allow")
	}
}
