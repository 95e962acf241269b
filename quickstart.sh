#!/usr/bin/env bash
# Trains a small llama-style model on real text and shows what it learned, in a few minutes on two cores.
#   ./quickstart.sh               on the King James Bible (public domain)
#   ./quickstart.sh --text FILE   on your own text (UTF-8, best a megabyte or more)
set -euo pipefail
cd "$(dirname "$0")"

text=""
case "${1:-}" in
  "") ;;
  --text)
    text="${2:?"--text needs a FILE"}"
    [ -s "$text" ] || { echo "quickstart: $text is missing or empty" >&2; exit 2; }
    ;;
  *) sed -n '2,4p' "$0" >&2; exit 2 ;;
esac

. scripts/install_packages.sh
if [ -n "$text" ]; then install_packages "${BUILD_PACKAGES[@]}"; else install_packages "${BUILD_PACKAGES[@]}" bible-kjv; fi

[ -f build/release/build.ninja ] || cmake --preset release -DMESHTRAIN_TESTS=OFF >/dev/null
cmake --build --preset release --target meshtrain
meshtrain=build/release/meshtrain

if [ -n "$text" ]; then name=$(basename "$text" | tr -c 'A-Za-z0-9._\n-' '_'); else name=bible; fi
run=runs/quickstart-$name
data=$run/data
mkdir -p "$data"
if [ -z "$text" ]; then
  text=$data/bible.txt
  [ -s "$text" ] || bible -f gen1:1-rev22:21 >"$text.part" && { [ ! -f "$text.part" ] || mv "$text.part" "$text"; }
fi

echo
echo "== 1. Tokenize: the last twentieth of the text is kept for validation"
lines=$(wc -l <"$text")
if [ "$lines" -ge 40 ]; then
  head -n $((lines - lines / 20)) "$text" >"$data/train.txt"
  tail -n $((lines / 20)) "$text" >"$data/valid.txt"
else # few lines: cut by bytes
  bytes=$(wc -c <"$text")
  head -c $((bytes - bytes / 20)) "$text" >"$data/train.txt"
  tail -c $((bytes / 20)) "$text" >"$data/valid.txt"
fi
# A vocabulary that fits the size of the text.
bytes=$(wc -c <"$data/train.txt")
if [ "$bytes" -ge 1000000 ]; then
  tokenizer=sentencepiece:$data/tokenizer.model
  "$meshtrain" tokenize "$data/train.txt" --out "$data/train" --train-sentencepiece "$data/tokenizer" --vocab 2048
else
  tokenizer=bytes
  "$meshtrain" tokenize "$data/train.txt" --out "$data/train" --tokenizer "$tokenizer"
fi
"$meshtrain" tokenize "$data/valid.txt" --out "$data/valid" --tokenizer "$tokenizer"

echo
echo "== 2. Train: as many steps as fit into some two minutes here"
settings=(-s data.tokenizer="$tokenizer" -s data.train="$data/train" -s data.valid="$data/valid" -s output.dir="$run/run")
step_seconds=$("$meshtrain" bench train --config configs/quickstart.toml "${settings[@]}" --steps 3 --json |
  sed -n 's/.*"seconds_per_step": \([0-9.e-]*\).*/\1/p')
steps=$(awk -v s="$step_seconds" 'BEGIN { n = int(135 / s); if (n < 20) n = 20; if (n > 2000) n = 2000; print n }')
# Three minutes are the limit, should the machine become slower: an interrupted run saves what it has.
timeout --preserve-status --signal=INT 175 \
  "$meshtrain" train configs/quickstart.toml "${settings[@]}" -s train.steps="$steps"

echo
echo "== 3. Evaluate on text it has not seen"
"$meshtrain" eval "$run/run"

echo
echo "== 4. Generate"
"$meshtrain" generate "$run/run" --tokens 120 --temperature 0.8 --top-p 0.95 </dev/null

cat <<EOF

The run folder is $run/run: metrics.jsonl (a line a step), config.toml, checkpoints/, summary.json.
Try next:
  $meshtrain generate $run/run --prompt "In the beginning" --tokens 200 --seed 7
  $meshtrain train $run/run --resume -s train.steps=$((steps * 2))      # train on
  $meshtrain plan configs/quickstart.toml -s model.vocab=2048          # what it costs, to the byte
  $meshtrain plan configs/llama-3.1-405b.toml                          # and what a large one would
EOF
