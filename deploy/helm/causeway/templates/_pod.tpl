{{/* The pods of the StatefulSet, or of the Deployment of a site. */}}
{{- define "causeway.pod" -}}
metadata:
  labels: {{- include "causeway.labels" . | nindent 4 }}
  {{- with .Values.podAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  automountServiceAccountToken: false
  {{- if .Values.site.enabled }}
  {{- with .Values.site.serviceAccount }}
  serviceAccountName: {{ . }}
  {{- end }}
  {{- end }}
  # Kubernetes would set variables such as CAUSEWAY_PORT for the services, which Causeway rejects as unknown
  # settings.
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: { type: RuntimeDefault }
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: causeway
      image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: { drop: [ALL] }
      env:
        - { name: CAUSEWAY_DATA_DIR, value: /data }
        - { name: CAUSEWAY_HTTP_LISTEN, value: "0.0.0.0:8080" }
        {{- if .Values.metrics.enabled }}
        - { name: CAUSEWAY_ADMIN_LISTEN, value: "0.0.0.0:8081" }
        - { name: CAUSEWAY_ADMIN_PLAINTEXT, value: "true" }
        {{- end }}
        {{- if .Values.site.enabled }}
        {{- include "causeway.siteEnvironment" . | nindent 8 }}
        {{- end }}
        {{- range $key, $value := .Values.settings }}
        - name: CAUSEWAY_{{ $key | replace "." "_" | upper }}
          value: {{ include "causeway.value" $value | quote }}
        {{- end }}
        {{- with .Values.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - { name: http, containerPort: 8080 }
        - { name: p2p-tcp, containerPort: 4001 }
        - { name: p2p-udp, containerPort: 4001, protocol: UDP }
        {{- if .Values.metrics.enabled }}
        - { name: admin, containerPort: 8081 }
        {{- end }}
      startupProbe:
        httpGet: { path: /healthz, port: http }
        periodSeconds: 5
        failureThreshold: {{ div .Values.startupSeconds 5 }}
      livenessProbe:
        httpGet: { path: /healthz, port: http }
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      # 503 while the gateway drains, and while it cannot store anything.
      readinessProbe:
        httpGet: { path: /readyz, port: http }
        periodSeconds: 5
        timeoutSeconds: 5
      resources: {{- toYaml .Values.resources | nindent 8 }}
      volumeMounts:
        - { name: data, mountPath: /data }
        {{- if .Values.site.enabled }}
        {{- with include "causeway.siteMounts" . | trim }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if .Values.site.enabled }}
  {{- include "causeway.sitePlacement" . | nindent 2 }}
  {{- end }}
{{- end }}
