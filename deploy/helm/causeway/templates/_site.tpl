{{/* What the pods of a site have in addition: docs/howto/site.md. */}}

{{/* Rejects values with which the gateways would not start, or would be alone. */}}
{{- define "causeway.siteCheck" -}}
{{- with .Values.site }}
{{- if not .name }}{{ fail "site.name is empty" }}{{ end }}
{{- if not .database.secret }}{{ fail "site.database.secret is empty: the secret with the URL of the database" }}{{ end }}
{{- if and .store.bucket .store.volumeClaim }}{{ fail "site.store.bucket and site.store.volumeClaim: set one of them" }}{{ end }}
{{- if not (or .store.bucket .store.volumeClaim) }}{{ fail "a site needs site.store.bucket or site.store.volumeClaim" }}{{ end }}
{{- if and .store.volumeClaim .store.credentialsSecret }}{{ fail "site.store.credentialsSecret is for site.store.bucket" }}{{ end }}
{{- if not (has .disk (list "emptyDir" "ephemeral")) }}{{ fail "site.disk is neither emptyDir nor ephemeral" }}{{ end }}
{{- end }}
{{- range list "site.name" "site.database" "site.database_file" "site.database_ca" "site.store" "site.s3_credentials_file" "site.names" "site.names_key_file" }}
{{- if hasKey $.Values.settings . }}{{ fail (printf "settings has %s, which the values of site set" .) }}{{ end }}
{{- end }}
{{- end }}

{{- define "causeway.siteEnvironment" -}}
{{- $site := .Values.site -}}
- { name: CAUSEWAY_SITE_NAME, value: {{ $site.name | quote }} }
- name: CAUSEWAY_SITE_DATABASE
  valueFrom: { secretKeyRef: { name: {{ $site.database.secret }}, key: {{ $site.database.key }} } }
{{- if $site.database.caSecret }}
- { name: CAUSEWAY_SITE_DATABASE_CA, value: "/etc/causeway/database/{{ $site.database.caKey }}" }
{{- end }}
{{- with $site.store.bucket }}
- { name: CAUSEWAY_SITE_STORE, value: {{ printf "s3://%s" . | quote }} }
{{- end }}
{{- if $site.store.volumeClaim }}
- { name: CAUSEWAY_SITE_STORE, value: "file:///shared" }
{{- end }}
{{- if $site.store.credentialsSecret }}
# A file is read again when the secret changes; variables are not.
- { name: CAUSEWAY_SITE_S3_CREDENTIALS_FILE, value: "/etc/causeway/s3/{{ $site.store.credentialsKey }}" }
{{- end }}
{{- if (($site.names).keySecret) }}
- { name: CAUSEWAY_SITE_NAMES, value: "shared" }
- { name: CAUSEWAY_SITE_NAMES_KEY_FILE, value: "/etc/causeway/names/{{ $site.names.keyKey }}" }
{{- end }}
{{- if not (hasKey .Values.settings "http.drain_delay_seconds") }}
# A pod that ends gets requests until all nodes have removed it from the service.
- { name: CAUSEWAY_HTTP_DRAIN_DELAY_SECONDS, value: "5" }
{{- end }}
{{- end }}

{{- define "causeway.siteMounts" -}}
{{- $site := .Values.site -}}
{{- if $site.database.caSecret }}
- { name: database-ca, mountPath: /etc/causeway/database, readOnly: true }
{{- end }}
{{- if $site.store.credentialsSecret }}
- { name: s3-credentials, mountPath: /etc/causeway/s3, readOnly: true }
{{- end }}
{{- if (($site.names).keySecret) }}
- { name: names-key, mountPath: /etc/causeway/names, readOnly: true }
{{- end }}
{{- if $site.store.volumeClaim }}
- { name: shared, mountPath: /shared }
{{- end }}
{{- end }}

{{- define "causeway.sitePlacement" -}}
{{- $site := .Values.site -}}
# Replicas are on different nodes, and in different zones, also during a rolling update.
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: {{ $site.whenUnsatisfiable }}
    matchLabelKeys: [pod-template-hash]
    labelSelector:
      matchLabels: {{- include "causeway.selectorLabels" $ | nindent 8 }}
  {{- end }}
volumes:
  # The cache of this gateway, which ends with the pod.
  - name: data
    {{- if eq $site.disk "emptyDir" }}
    emptyDir: { sizeLimit: {{ .Values.persistence.size }} }
    {{- else }}
    ephemeral:
      volumeClaimTemplate:
        spec:
          accessModes: [ReadWriteOnce]
          {{- with .Values.persistence.storageClass }}
          storageClassName: {{ . }}
          {{- end }}
          resources:
            requests: { storage: {{ .Values.persistence.size }} }
    {{- end }}
  {{- with $site.database.caSecret }}
  - name: database-ca
    secret: { secretName: {{ . }} }
  {{- end }}
  {{- with $site.store.credentialsSecret }}
  - name: s3-credentials
    secret: { secretName: {{ . }} }
  {{- end }}
  {{- with (($site.names).keySecret) }}
  # Readable by the group of the pod only, as the gateway demands.
  - name: names-key
    secret: { secretName: {{ . }}, defaultMode: 0440 }
  {{- end }}
  {{- with $site.store.volumeClaim }}
  - name: shared
    persistentVolumeClaim: { claimName: {{ . }} }
  {{- end }}
{{- end }}
