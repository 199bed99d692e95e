#!/bin/sh
# Makes dpkg believe that the packages with a leading `-` in a variant's list are installed, so that others which depend
# on them can be installed without them. Runs inside the new root file system, before its packages are installed.
# Usage: leave_out.sh LIST...
set -eu
sed -n 's/^-//p' "$@" | while read -r name; do
  cat >> /var/lib/dpkg/status <<ENTRY
Package: $name
Status: install ok installed
Priority: optional
Section: misc
Architecture: all
Multi-Arch: foreign
Version: 9999
Maintainer: sandboxd <agent@sandbox.invalid>
Description: left out of this image, nothing of it is installed

ENTRY
  : > "/var/lib/dpkg/info/$name.list"
done
