#!/bin/sh
# Builds the book in target/book, by mdBook. Its pages stay where a code host shows them, so they are collected first,
# with the files that they link to. Decision records become pages below their index.
set -eu
cd "$(dirname "$0")/.."

if ! command -v mdbook >/dev/null; then
	echo "make book: there is no mdbook. Install it with \`cargo install mdbook --locked\`, or from your distribution" >&2
	exit 1
fi
rm -rf target/book-pages target/book
pages=target/book-pages/src
mkdir -p "$pages"
{
	find docs examples packaging/prometheus -type f
	ls ./*.md
	# Sources that pages link to.
	find docs examples ./*.md -name '*.md' -exec grep -oh '](\(\.\./\)*crates/[^)#]*' {} + | sed 's|.*](\(\.\./\)*||' | sort -u
} | tar -cf - -T - | tar -xf - -C "$pages"

# Links of the summary begin at docs/book, those of mdBook at the root of the pages.
{
	sed 's|](\.\./\.\./|](|; t; s|](\.\./|](docs/|; t; s|](|](docs/book/|' docs/book/SUMMARY.md
	for record in docs/adr/[0-9]*.md; do
		echo "  - [$(sed -n '1s/^# //p' "$record")]($record)"
	done
} >"$pages/SUMMARY.md"
sed 's|^\[build\]|&\nbuild-dir = "../book"|' docs/book/book.toml >target/book-pages/book.toml
mdbook build target/book-pages
echo "the book is at target/book/index.html"
