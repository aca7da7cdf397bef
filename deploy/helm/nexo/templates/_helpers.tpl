{{- define "nexo.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "nexo.headless" -}}
{{- include "nexo.name" . }}-nodes
{{- end -}}

{{- define "nexo.secret" -}}
{{- .Values.auth.existing | default (include "nexo.name" .) -}}
{{- end -}}

{{- define "nexo.selector" -}}
app.kubernetes.io/name: nexo
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "nexo.labels" -}}
{{ include "nexo.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- /* The addresses of all nodes, the same on each of them: the first begins the cluster, if all are new. */ -}}
{{- define "nexo.join" -}}
{{- $all := list -}}
{{- range $at := until (int .Values.replicas) -}}
{{- $all = append $all (printf "%s-%d.%s.%s.svc.%s:7655" (include "nexo.name" $) $at (include "nexo.headless" $) $.Release.Namespace $.Values.clusterDomain) -}}
{{- end -}}
{{- join "," $all -}}
{{- end -}}
