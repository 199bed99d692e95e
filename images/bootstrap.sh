#!/bin/sh
# Builds the agent's root file system from Debian packages alone: no registry, no engine.
# Usage: bootstrap.sh SUITE SOURCES APT_OPTIONS TARBALL [VARIANT]; SOURCES is a sources.list, APT_OPTIONS an apt.conf.
set -eu
inputs=$(cd "$(dirname "$0")" && pwd)
list="$inputs/variants/${5:-}.txt"
if [ -z "${5:-}" ]; then list=/dev/null; fi
packages=$(cat "$inputs/packages.txt" "$list" | grep '^[a-z]' | paste -sd, -)

# mmdebstrap copies the hostname and the resolver configuration from the host; agents do not need them.
# finish.sh removes apt's directories, so mmdebstrap must not look for its own files there afterwards.
# Unsafe input and output, because a tarball is made or not: waiting for the disk after each file takes a third longer.
exec mmdebstrap \
  --variant=essential \
  --format=tar \
  --skip=cleanup/apt,cleanup/mmdebstrap \
  --aptopt="$3" \
  --dpkgopt='force-unsafe-io' \
  --dpkgopt='path-exclude=/usr/share/man/*' \
  --dpkgopt='path-exclude=/usr/share/locale/*' \
  --include="$packages" \
  --essential-hook='mkdir "$1/finish"' \
  --essential-hook="copy-in '$inputs/leave_out.sh' /finish" \
  --essential-hook="upload '$list' /finish/list.txt" \
  --essential-hook='chroot "$1" sh /finish/leave_out.sh /finish/list.txt' \
  --customize-hook="copy-in '$inputs/finish.sh' '$inputs/profile' '$inputs/gitconfig' /finish" \
  --customize-hook='chroot "$1" sh /finish/finish.sh /finish' \
  --customize-hook='rm -rf "$1/finish" "$1/etc/dpkg/dpkg.cfg.d/99mmdebstrap"' \
  --customize-hook=': > "$1/etc/hostname"; : > "$1/etc/resolv.conf"' \
  "$1" "$4" "$2"
