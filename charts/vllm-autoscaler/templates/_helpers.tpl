{{/*
The objects are read from manifests/, which kustomize applies as they are. A template changes only what a value changes.
*/}}

{{/*
Name the installation: after the release, with the chart's name added unless the release's name contains it. The names
of Services end at 63 characters, `-keda` included.
*/}}
{{- define "vllm-autoscaler.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride }}
{{- else if contains "vllm-autoscaler" .Release.Name -}}
{{ .Release.Name | trunc 58 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-vllm-autoscaler" .Release.Name | trunc 58 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{- define "vllm-autoscaler.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "vllm-autoscaler.fullname" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | required "serviceAccount.name is needed where serviceAccount.create is false" }}
{{- end -}}
{{- end -}}

{{- define "vllm-autoscaler.selectorLabels" -}}
app.kubernetes.io/name: vllm-autoscaler
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/*
Return `document` of `root` with the names, namespace, labels, annotations and selector of this installation. The part
of a name behind `vllm-autoscaler` stays.
*/}}
{{- define "vllm-autoscaler.installed" -}}
{{- $root := .root -}}
{{- $document := .document -}}
{{- $metadata := $document.metadata -}}
{{- $suffix := trimPrefix "vllm-autoscaler" $metadata.name -}}
{{- $_ := set $metadata "name" (printf "%s%s" (include "vllm-autoscaler.fullname" $root) $suffix) -}}
{{- $namespaces := dict "vllm-autoscaler-weights" $root.Values.weights.namespace "kube-system" "kube-system" -}}
{{- $clusterWide := list "MutatingWebhookConfiguration" "Namespace" "PriorityClass" "ValidatingAdmissionPolicy" "ValidatingAdmissionPolicyBinding" -}}
{{- if eq $document.kind "Namespace" -}}
{{- $_ := set $metadata "name" $root.Values.weights.namespace -}}
{{- end -}}
{{- if not (or (hasPrefix "Cluster" $document.kind) (has $document.kind $clusterWide)) -}}
{{- $_ := set $metadata "namespace" (get $namespaces ($metadata.namespace | default "") | default $root.Release.Namespace) -}}
{{- end -}}
{{- $ours := include "vllm-autoscaler.selectorLabels" $root | fromYaml -}}
{{- $_ := set $ours "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{- $_ := set $ours "app.kubernetes.io/version" $root.Chart.AppVersion -}}
{{- $_ := set $ours "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_") -}}
{{- $_ := set $metadata "labels" (mergeOverwrite (deepCopy $root.Values.labels) ($metadata.labels | default dict) $ours) -}}
{{- with mergeOverwrite (deepCopy $root.Values.annotations) ($metadata.annotations | default dict) -}}
{{- $_ := set $metadata "annotations" . -}}
{{- end -}}
{{- with $document.spec -}}
{{- $selector := .podSelector | default .selector | default dict -}}
{{- $selector = $selector.matchLabels | default $selector -}}
{{- if hasKey $selector "app.kubernetes.io/name" -}}
{{- $_ := set $selector "app.kubernetes.io/instance" $root.Release.Name -}}
{{- end -}}
{{- end -}}
{{- if $document.roleRef -}}
{{- $_ := set $document.roleRef "name" $metadata.name -}}
{{- range $subject := $document.subjects -}}
{{- $part := trimPrefix "vllm-autoscaler" $subject.name -}}
{{- $account := include "vllm-autoscaler.serviceAccountName" $root -}}
{{- if $part -}}
{{- $account = printf "%s%s" (include "vllm-autoscaler.fullname" $root) $part -}}
{{- end -}}
{{- $_ := set $subject "name" $account -}}
{{- $_ := set $subject "namespace" (get $namespaces $subject.namespace | default $root.Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{ toYaml $document }}
{{- end -}}

{{/*
Set image, pull policy and pull secrets of `pod`, which has one container, as the values say.
*/}}
{{- define "vllm-autoscaler.setImage" -}}
{{- $values := .root.Values.image -}}
{{- $container := first .pod.containers -}}
{{- $image := printf "%s:%s" $values.repository ($values.tag | default .root.Chart.AppVersion) -}}
{{- with $values.digest -}}
{{- $image = printf "%s@%s" $values.repository . -}}
{{- end -}}
{{- $_ := set $container "image" $image -}}
{{- with $values.pullPolicy -}}
{{- $_ := set $container "imagePullPolicy" . -}}
{{- end -}}
{{- with $values.pullSecrets -}}
{{- $secrets := list -}}
{{- range . -}}
{{- $secrets = append $secrets (dict "name" .) -}}
{{- end -}}
{{- $_ := set $.pod "imagePullSecrets" $secrets -}}
{{- end -}}
{{- end -}}

{{/*
Return a document of a file in manifests/ as it is for this installation: root, file, and document where it is not the first.
*/}}
{{- define "vllm-autoscaler.manifest" -}}
{{- $text := .root.Files.Get (printf "manifests/%s" .file) | required (printf "manifests/%s is not in the chart" .file) -}}
{{- $document := index (splitList "\n---\n" $text) (.document | default 0) | fromYaml -}}
{{- include "vllm-autoscaler.installed" (dict "root" .root "document" $document) -}}
{{- end -}}

{{/*
Return an admission policy on an account, with its binding: root, file, document, namespace and account, variables.
*/}}
{{- define "vllm-autoscaler.admission" -}}
{{- $policy := include "vllm-autoscaler.manifest" . | fromYaml -}}
{{- $user := printf "system:serviceaccount:%s:%s" .namespace .account -}}
{{- $_ := set (first $policy.spec.matchConditions) "expression" (printf "request.userInfo.username == '%s'" $user) -}}
{{- range $variable := $policy.spec.variables -}}
{{- with get ($.variables | default dict) $variable.name -}}
{{- $_ := set $variable "expression" . -}}
{{- end -}}
{{- end -}}
{{- $next := add (.document | default 0) 1 | int -}}
{{- $binding := include "vllm-autoscaler.manifest" (dict "root" .root "file" .file "document" $next) | fromYaml -}}
{{- /* Releases of some namespaces may have one name. */}}
{{- if .root.Values.namespaces -}}
{{- $_ := set $policy.metadata "name" (printf "%s-%s" .root.Release.Namespace $policy.metadata.name) -}}
{{- end -}}
{{- $_ := set $binding.metadata "name" $policy.metadata.name -}}
{{- $_ := set $binding.spec "policyName" $policy.metadata.name }}
{{ toYaml $policy }}
---
{{ toYaml $binding }}
{{- end -}}

{{/*
Return one on the account of the daemon: root, file, document, variables.
*/}}
{{- define "vllm-autoscaler.admissionOfDaemon" -}}
{{- $account := include "vllm-autoscaler.serviceAccountName" .root -}}
{{- include "vllm-autoscaler.admission" (merge (dict "namespace" .root.Release.Namespace "account" $account) .) -}}
{{- end -}}

{{/*
Set the user of `pod` and where it runs, as the values say.
*/}}
{{- define "vllm-autoscaler.setPlace" -}}
{{- $values := .root.Values -}}
{{- $security := .pod.securityContext -}}
{{- range list "runAsUser" "runAsGroup" "fsGroup" -}}
{{- if hasKey $security . -}}
{{- if $values.runAsUser -}}
{{- $_ := set $security . (int64 $values.runAsUser) -}}
{{- else -}}
{{- $_ := unset $security . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $field := list "nodeSelector" "tolerations" "affinity" "priorityClassName" -}}
{{- with index $values $field -}}
{{- $_ := set $.pod $field . -}}
{{- end -}}
{{- end -}}
{{- end -}}
