#!/bin/sh
# Build the container file without a container engine, measure the image, and try it under a user id without a name,
# on a root that cannot be written. Needs root, and Debian's debootstrap, buildah and iproute2; some 700 MB and two
# minutes. No engine runs: what stands for the base is a root that debootstrap makes, with Debian's Python.
#
#   contrib/container/check.sh [FOLDER]      folder to work in, which is deleted
set -eu
here=$(dirname "$(realpath "$0")")
work=${1:-/tmp/lazaretto-container}
base=$(sed -n 's/^FROM \([^ ]*\)$/\1/p' "$here/Containerfile")
most=60
mkdir -p "$work"
buildah() { command buildah --root "$work/images" --runroot "$work/run" --storage-driver vfs "$@"; }
finish() { buildah rm --all > /dev/null; rm -rf "$work"; }
trap finish EXIT

debootstrap --variant=minbase --include=ca-certificates,python3,python3-pip trixie "$work/base" > "$work/log"
# As the base has it: `python`, into whose own folders pip installs.
ln -s python3 "$work/base/usr/bin/python"
rm -rf "$work"/base/usr/lib/python3*/EXTERNALLY-MANAGED "$work"/base/var/cache/apt/archives/*.deb
# This machine may reach registries through a proxy, whose certificates it knows.
cp /etc/ssl/certs/ca-certificates.crt "$work/base/etc/ssl/certs/"
made=$(buildah from scratch)
cp -a "$work/base/." "$(buildah mount "$made")/"
buildah config --env PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$made"
buildah commit --rm --quiet "$made" "$base" > /dev/null
buildah build --isolation chroot --pull-never --format docker --quiet --tag lazaretto-emulator \
    --file "$here/Containerfile" "$here/../.." > /dev/null

image=$(buildah from --pull-never lazaretto-emulator)
root=$(buildah mount "$image")
bytes() { du --summarize --bytes "$1" | cut -f1; }
size=$(( ($(bytes "$root") - $(bytes "$work/base") + 999999) / 1000000 ))
echo "on top of the base: $size MB, of at most $most"
test $size -le $most

# Network and mounts of its own, so that it listens where it always does.
export root entrypoint health
entrypoint=$(buildah inspect --format '{{range .Docker.Config.Entrypoint}}{{.}} {{end}}' "$image")
health=$(buildah inspect --format '{{index .Docker.Config.Healthcheck.Test 3}}' "$image")
unshare --mount --net sh -eu << 'END'
ip link set lo up
mount --bind "$root" "$root"
mount -o remount,ro,bind "$root"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o mode="$(stat --format %a "$root/data")" tmpfs "$root/data"
inside="chroot --userspec=12345:12345 $root env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/"
if $inside touch /written 2> /dev/null; then echo "expected a root that cannot be written" >&2; exit 1; fi
$inside $entrypoint --store /data/emulator.db &
server=$!
trap 'kill $server' EXIT
for _ in $(seq 120); do $inside python -c "$health" 2> /dev/null && break; sleep 1; done
$inside lazaretto queue create orders --store /data/emulator.db
$inside python -c '
from urllib.request import Request, urlopen
at = "http://127.0.0.1:5672/orders/messages"
urlopen(Request(at, b"three lamps", method="POST"))
assert urlopen(Request(at + "/head", method="DELETE")).read() == b"three lamps"
'
kill $server
trap - EXIT
wait $server
END
echo "well, sent and received as user 12345, on a root that cannot be written"
