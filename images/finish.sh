#!/bin/sh
# Turns a root file system with the listed packages into the agent image. Runs inside it, as root, in both builds.
# Usage: finish.sh DIRECTORY, the directory that holds `profile` and `gitconfig`.
set -eu
inputs=$1

# Agents cannot install packages: the root file system is read-only and there is no network. The sources would only
# reveal which mirror, and perhaps which password, the build used.
if [ -x /usr/bin/apt-get ]; then
  dpkg --purge --force-remove-protected apt
fi
rm -rf /etc/apt /var/lib/apt /var/cache/apt /var/cache/debconf/*-old

# 10001 is the uid the engine runs agents as; a name for it keeps git, ssh and `id` from complaining.
echo 'agent:x:10001:' >> /etc/group
echo 'agent:x:10001:10001:agent:/workspace:/bin/bash' >> /etc/passwd
echo 'agent:!:19000::::::' >> /etc/shadow
echo 'agent:!::' >> /etc/gshadow
chmod 0640 /etc/shadow /etc/gshadow # created just now if no package had created them
rm -f /etc/passwd- /etc/group- /etc/shadow- /etc/gshadow-
mkdir -p /workspace/memo /skills
chown -R 10001:10001 /workspace

install -m 0644 "$inputs/profile" /etc/profile
install -m 0644 "$inputs/gitconfig" /etc/gitconfig
: > /etc/machine-id

# Keep licences, remove manuals.
find /usr/share/doc -depth ! -type d ! -name copyright -delete
find /usr/share/doc -depth -type d -empty -delete
rm -rf /usr/share/man /usr/share/info /usr/share/groff /usr/share/lintian /usr/share/bug /usr/share/locale
rm -rf /usr/share/bash-completion /usr/share/zsh /usr/share/gitweb /usr/share/pixmaps /usr/share/icons
find /var/log /var/cache -type f -delete
mkdir -p /usr/share/man /usr/share/locale

# pip then installs below /workspace, because nothing else is writable; no other package manager is left to protect.
rm -f /usr/lib/python3.*/EXTERNALLY-MANAGED

# The root file system is read-only for agents, so Python would compile missing bytecode again on every start.
python3 -m compileall -q /usr/lib/python3.* -x 'lib2to3/tests|/test/'

# No program in the image may gain privileges when it is run.
find / -xdev ! -type l -perm /6000 -exec chmod ug-s {} +
python3 - <<'PYTHON'
import os

for directory, _, names in os.walk("/usr"):
    for path in (os.path.join(directory, name) for name in names):
        if "security.capability" in os.listxattr(path, follow_symlinks=False):
            os.removexattr(path, "security.capability", follow_symlinks=False)
PYTHON
