#!/usr/bin/env bash
# Fetch the CustomResourceDefinitions of other platforms, as their Go modules have them, and print their folder.
#
#   tools/platform_crds.sh            fetch them unless they are there (once per machine; some 150 MB are read)
#   tools/platform_crds.sh --where    print where they are or would be; fetch nothing
set -euo pipefail
source "$(dirname "$0")/go.sh"

# Module, version and the files in it. Other platforms have no module that the public proxy serves.
CRDS='
github.com/kserve/kserve v0.20.0 config/crd/full/serving.kserve.io_inferenceservices.yaml
github.com/kserve/kserve v0.20.0 config/crd/full/llmisvc/serving.kserve.io_llminferenceservices.yaml
sigs.k8s.io/lws v0.8.0 config/crd/bases/*.yaml
github.com/ray-project/kuberay/ray-operator v1.5.0 config/crd/bases/*.yaml
sigs.k8s.io/gateway-api-inference-extension v1.2.0 config/crd/bases/inference.networking.k8s.io_*.yaml

sigs.k8s.io/kueue v0.17.0 config/components/crd/bases/kueue.x-k8s.io_*queues.yaml
github.com/argoproj/argo-cd/v3 v3.2.0 manifests/crds/application*-crd.yaml
github.com/kedacore/keda/v2 v2.21.0 config/crd/bases/keda.sh_*.yaml
'
folder=$cache/platform-crds/$(sha256sum <<<"$CRDS" | cut -c1-12)

if [[ ${1:-} == --where || -d $folder ]]; then echo "$folder"; exit; fi
lock "$cache/platform-crds"
if [[ -d $folder ]]; then echo "$folder"; exit; fi
begin "$cache/platform-crds" "sigs.k8s.io/lws@v0.8.0"
while read -r module version files; do
  [[ $module ]] || continue
  source=$(go mod download -json "$module@$version" | field Dir)
  cp $source/$files "$work/built/"                 # a pattern, so without quotes
done <<<"$CRDS"
chmod -R u+w "$work/built"
mv "$work/built" "$folder"                         # the same file system: it appears whole or not at all
echo "$folder"
