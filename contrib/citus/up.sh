#!/usr/bin/env bash
# Starts a coordinator and two workers of Citus on 127.0.0.1:26400 to 26402, as `build.sh SOURCE FOLDER` has built them.
#
#   up.sh FOLDER            starts them; their data is in FOLDER/node0 to node2, whose postgres account is the one given
#   up.sh FOLDER stop       stops them, and removes their data
set -euo pipefail
bin=$1/usr/lib/postgresql/15/bin
account=${PGACCOUNT:-postgres}
as() { if [ "$(id -u)" = 0 ]; then setpriv --reuid="$account" --regid="$account" --clear-groups "$@"; else "$@"; fi; }
if [ "${2:-}" = stop ]; then
  for n in 0 1 2; do as "$bin/pg_ctl" -D "$1/node$n" -m fast stop; rm -rf "$1/node$n"; done
  exit
fi
for n in 0 1 2; do
  mkdir "$1/node$n"
  [ "$(id -u)" != 0 ] || chown "$account" "$1/node$n"
  as "$bin/initdb" -D "$1/node$n" -A trust -U lazaretto --no-locale -E UTF8 >/dev/null
  printf '%s\n' "listen_addresses = '127.0.0.1'" "port = $((26400 + n))" "unix_socket_directories = ''" \
    "shared_preload_libraries = 'citus'" "max_connections = 200" "citus.node_conninfo = 'sslmode=disable'" \
    "wal_level = logical" "${PGSETTING:-fsync = on}" >>"$1/node$n/postgresql.conf"
  as "$bin/pg_ctl" -D "$1/node$n" -l "$1/node$n/log" -w start >/dev/null
  as "$bin/psql" -h 127.0.0.1 -p "$((26400 + n))" -U lazaretto -d postgres -qc 'CREATE EXTENSION citus'
done
as "$bin/psql" -h 127.0.0.1 -p 26400 -U lazaretto -d postgres -qAt -c "SELECT citus_set_coordinator_host('127.0.0.1', 26400)" \
  -c "SELECT citus_add_node('127.0.0.1', 26401)" -c "SELECT citus_add_node('127.0.0.1', 26402)"
