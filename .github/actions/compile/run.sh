#!/bin/bash
# Compiles and verifies a model, compares it with the base branch, and writes the table to the summary and a comment.
# Reads MODEL, TARGET, OPTIONS, MAX_GROWTH, COMMENT, BASE and PULL_REQUEST.
set -euo pipefail

folder="$RUNNER_TEMP/tosaic"
mkdir -p "$folder"
read -ra options <<< "${OPTIONS:-}"

tosaic compile "$MODEL" -t "$TARGET" "${options[@]}" --verify -o "$folder/after.pte"
echo "program=$folder/after.pte" >> "$GITHUB_OUTPUT"

table="$folder/table.md"
status=0
before=""
if [ -n "${BASE:-}" ]; then
  git worktree add --force --detach "$folder/base" "$BASE"
  # A model that is new, or that did not compile before, has nothing to compare with.
  if (cd "$folder/base" && tosaic compile "$MODEL" -t "$TARGET" "${options[@]}" -q -o "$folder/before.pte"); then
    before="$folder/before.pte"
  fi
  git worktree remove --force "$folder/base"
fi
if [ -n "$before" ]; then
  growth=()
  if [ -n "${MAX_GROWTH:-}" ]; then growth=(--max-growth "$MAX_GROWTH"); fi
  (cd "$folder" && tosaic diff before.pte after.pte --markdown "${growth[@]}") > "$table" || status=$?
  if [ "$status" -gt 1 ]; then exit "$status"; fi
else
  (cd "$folder" && tosaic diff after.pte after.pte --markdown) > "$table"
fi
{ echo "## Tosaic"; echo; cat "$table"; } > "$folder/comment.md"
cat "$folder/comment.md" >> "$GITHUB_STEP_SUMMARY"
if [ "${COMMENT:-}" = true ] && [ -n "${PULL_REQUEST:-}" ]; then
  gh pr comment "$PULL_REQUEST" --body-file "$folder/comment.md" --edit-last --create-if-none ||
    echo "::notice::there is no permission to comment: the table is in the summary of this job"
fi
exit "$status"
