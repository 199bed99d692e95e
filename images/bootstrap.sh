#!/bin/sh
# Builds the agent's root file system from Debian packages alone: no registry, no engine.
# Usage: bootstrap.sh SUITE SOURCES APT_OPTIONS TARBALL; SOURCES is a sources.list, APT_OPTIONS an apt.conf.
set -eu
inputs=$(cd "$(dirname "$0")" && pwd)
packages=$(grep -v '^#' "$inputs/packages.txt" | paste -sd, -)

# mmdebstrap copies the hostname and the resolver configuration from the host; agents do not need them.
# finish.sh removes apt's directories, so mmdebstrap must not look for its own files there afterwards.
exec mmdebstrap \
  --variant=essential \
  --format=tar \
  --skip=cleanup/apt,cleanup/mmdebstrap \
  --aptopt="$3" \
  --dpkgopt='path-exclude=/usr/share/man/*' \
  --dpkgopt='path-exclude=/usr/share/locale/*' \
  --include="$packages" \
  --customize-hook='mkdir "$1/finish"' \
  --customize-hook="copy-in '$inputs/finish.sh' '$inputs/profile' '$inputs/gitconfig' /finish" \
  --customize-hook='chroot "$1" sh /finish/finish.sh /finish' \
  --customize-hook='rm -rf "$1/finish" "$1/etc/dpkg/dpkg.cfg.d/99mmdebstrap"' \
  --customize-hook=': > "$1/etc/hostname"; : > "$1/etc/resolv.conf"' \
  "$1" "$4" "$2"
