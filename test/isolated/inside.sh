# Run by enter.sh as the first process of its namespaces: it sets up a machine without a node in them, and runs the command.
name=$1 dir=$2
shift 2
mount -t proc proc /proc
for at in $HIERARCHIES; do
  mount --bind "$at/$name" "$at"
done
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
  # In cgroup v2 a cgroup whose children have controllers must not have processes.
  mkdir /sys/fs/cgroup/init
  while read -r pid; do echo "$pid" >/sys/fs/cgroup/init/cgroup.procs || true; done </sys/fs/cgroup/cgroup.procs
  for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
    echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
  done
fi
for path in $DIRECTORIES; do
  mkdir -p "$dir/root$path"
  mount --bind "$dir/root$path" "$path"
done
# The registry in the names of the images.
{ cat /etc/hosts; echo 127.0.0.1 registry.k8s.io; } >"$dir/hosts"
mount --bind "$dir/hosts" /etc/hosts
# The suite would start the kubelet as a unit of the machine, and read the machine's journal.
for command in systemd-run journalctl; do
  if path=$(command -v $command); then
    mount --bind /dev/null "$(realpath "$path")"
  fi
done
# An interface with a default route that leads nowhere.
busybox ip link set lo up
busybox brctl addbr eth0
busybox ip address add "$ADDRESS/24" dev eth0
busybox ip link set eth0 up
busybox ip route add default via 192.0.2.1
"$@" # as a child, because the first process of a PID namespace has to reap orphans
