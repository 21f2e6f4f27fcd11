#!/usr/bin/env bash
# Refuse a commit whose subject is longer than 72 characters or names no room ("allocate: ..."). FILE holds the message.
set -euo pipefail
subject=$(head -n 1 "$1")
if ((${#subject} > 72)); then
  echo "the subject has ${#subject} characters; allowed: at most 72" >&2
  exit 1
fi
if ! [[ $subject =~ ^[A-Za-z0-9_./\ ,-]+:\ [a-z] || $subject =~ ^(Merge|Revert|fixup!|squash!)\  ]]; then
  echo "the subject is ${subject@Q}; allowed: a room, a colon and what the change does, as in 'allocate: ignore silent pods'" >&2
  exit 1
fi
