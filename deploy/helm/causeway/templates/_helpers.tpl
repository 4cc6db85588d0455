{{- define "causeway.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "causeway.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "causeway.labels" -}}
{{ include "causeway.selectorLabels" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* A setting's value as its environment variable has it: lists with commas, numbers without an exponent. */}}
{{- define "causeway.value" -}}
{{- if kindIs "slice" . }}
{{- range . }}{{ if kindIs "map" . }}{{ fail "settings are environment variables, which cannot hold tables: list plain values" }}{{ end }}{{ end }}
{{- join "," . }}
{{- else if kindIs "float64" . }}{{ printf "%.0f" . }}
{{- else }}{{ toString . }}{{ end }}
{{- end }}
