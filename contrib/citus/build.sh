#!/usr/bin/env bash
# Builds Citus for the machine's PostgreSQL 15, into a copy of that server: what is installed stays as it is.
#
#   build.sh SOURCE FOLDER      SOURCE: a clone of citusdata/citus (its git directory); FOLDER: where all of it goes
#
# Debian's packages postgresql-15 postgresql-server-dev-15 liblz4-dev libzstd-dev libkrb5-dev libssl-dev libxml2-dev
# libxslt1-dev libpam0g-dev libselinux1-dev flex bison gcc make must be there. It takes three minutes on two cores.
set -euo pipefail
version=${CITUS_VERSION:-v13.2.2}
mkdir -p "$2/source" "$2/usr/lib/postgresql" "$2/usr/share/postgresql" "$2/usr/include"
# A server finds its files relative to itself, so a copy of it has extensions of its own.
for part in lib share; do cp -rL "/usr/$part/postgresql/15" "$2/usr/$part/postgresql/"; done
cp -rL /usr/include/postgresql "$2/usr/include/"
git --git-dir="$1" archive "$version" | tar x -C "$2/source"
cd "$2/source"
# Servers whose headers have this function must not get a second one.
! grep -qrs have_createdb_privilege "$2/usr/include/postgresql/15/server/commands" || python3 - <<'EOF'
path = "src/include/pg_version_compat.h"
text = open(path).read()
begin = text.index("static inline bool\nhave_createdb_privilege(void)")
end = text.index("typedef bool TU_UpdateIndexes;")
open(path, "w").write(f'{text[:begin]}#include "commands/dbcommands.h"\n\n{text[end:]}')
EOF
./configure PG_CONFIG="$2/usr/lib/postgresql/15/bin/pg_config" --without-libcurl >/dev/null
make -s -j2 extension
make -s install
echo "built $version: $2/usr/lib/postgresql/15/bin/postgres"
