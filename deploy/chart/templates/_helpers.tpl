{{- /* All objects have the release's name, which gateways refer to. */ -}}
{{- define "labels" -}}
{{ include "selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{- define "selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /* The planner's pods are not the picker's: the Service must not send requests there. */ -}}
{{- define "plannerLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}-planner
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "readsPool" -}}
{{- if or .Values.pool.create (not .Values.selector) }}true{{ end -}}
{{- end -}}

{{- define "poolName" -}}
{{ .Values.inferencePool | default .Release.Name }}
{{- end -}}

{{- define "tls" -}}
{{- if or .Values.tls.secretName .Values.tls.selfSigned }}true{{ end -}}
{{- end -}}

{{- /* A port beyond loopback has no TLS: the picker's, that for other pickers, or the admin port, which a certificate at start does not cover. */ -}}
{{- define "insecure" -}}
{{- $open := or (not .Values.standalone.enabled) (include "peers" .) -}}
{{- $plain := and $open (not (include "tls" .)) -}}
{{- if or $plain (and .Values.admin.tokenSecretName (not .Values.tls.secretName)) }}true{{ end -}}
{{- end -}}

{{- /* Several pickers tell each other of their requests, unless they do so on a bus. */ -}}
{{- define "peers" -}}
{{- $bus := .Values.config.bus | default dict -}}
{{- if and (gt (int .Values.replicas) 1) (not $bus.url) }}true{{ end -}}
{{- end -}}

{{- /* The gateway reaches the relay beyond the pod. */ -}}
{{- define "openRelay" -}}
{{- if and .Values.relay.enabled (not .Values.standalone.enabled) }}true{{ end -}}
{{- end -}}

{{- define "metrics" -}}
{{- if or .Values.metrics.enabled .Values.serviceMonitor.enabled }}true{{ end -}}
{{- end -}}

{{- /* The flags that select the engines, for the picker and the control plane. */ -}}
{{- define "engineFlags" -}}
{{- if include "readsPool" . }}
- --inference-pool={{ join "," .Values.inferencePools | default (include "poolName" .) }}
{{- else }}
- --pod-selector={{ .Values.selector }}
- --pod-ports={{ .Values.port }}
{{- end }}
{{- end -}}

{{- define "containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
{{- end -}}

{{- /* Values that contradict each other. Misspelt ones are refused by values.schema.json. */ -}}
{{- define "check" -}}
{{- with .Values }}
{{- if and .inferencePool .inferencePools }}{{ fail "set inferencePool or inferencePools, not both" }}{{ end }}
{{- if and .selector (not .pool.create) (or .inferencePool .inferencePools) }}
{{- fail "set selector or inferencePool, not both; pool.create=true makes the pool from selector" }}
{{- end }}
{{- if and .pool.create (not .selector) }}{{ fail "pool.create needs selector: the labels of the engines' pods, such as app=qwen" }}{{ end }}
{{- if and .pool.create .inferencePools }}{{ fail "pool.create makes one pool: set inferencePool instead of inferencePools" }}{{ end }}
{{- if and .tls.secretName .tls.selfSigned }}{{ fail "set tls.secretName or tls.selfSigned, not both" }}{{ end }}
{{- if and .tls.verifyClient (not .tls.secretName) }}{{ fail "tls.verifyClient needs tls.secretName" }}{{ end }}
{{- if and .standalone.enabled (or .pool.create .tls.secretName .tls.selfSigned (ne .provider.name "none")) }}
{{- fail "standalone.enabled has an Envoy of its own: leave out pool.create, tls and provider" }}
{{- end }}
{{- if and .relay.enabled (not .standalone.enabled) (not (and .networkPolicy.enabled .networkPolicy.from)) }}
{{- fail "relay.enabled needs networkPolicy.enabled, and in networkPolicy.from the gateway alone: the relay asks no one for credentials" }}
{{- end }}
{{- if and .planner.enabled (not (and (dig "bus" "url" "" .config) (eq (dig "planner" "connector" "" .config) "kubernetes"))) }}
{{- fail "planner.enabled needs config.bus.url and config.planner.connector: kubernetes" }}
{{- end }}
{{- if and (eq .provider.name "envoy-gateway") (not (and .provider.httpRoute .provider.gateway)) }}
{{- fail "provider.name=envoy-gateway needs provider.httpRoute and provider.gateway" }}
{{- end }}
{{- end }}
{{- end -}}
