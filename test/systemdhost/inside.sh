# Run by enter.sh as the first process of its namespaces; become.sh follows. Its root is the machine's, read-only, with /run,
# /dev, /proc, /sys and /etc/machine-id of its own. Of the machine's cgroups it has only its own.
name=$1 share=$2
shift 2
# The process id on the machine, because this is still the machine's /proc.
read -r leader rest </proc/self/stat
echo "$leader" >"$share/leader"
root=$share/root
mount --bind / "$root"
mount -o remount,bind,ro "$root"
# The files of the test may be on other file systems than the root.
for path in /usr "$PWD" "$QUARTET_SYSTEMD_PROGRAM"; do
  if [ -z "$path" ]; then
    continue
  fi
  at=$(stat --format %m "$path")
  if [ "$at" != / ]; then
    mount --bind "$at" "$root$at"
    mount -o remount,bind,ro "$root$at"
  fi
done

mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
# With cgroup v1 each controller is mounted in a directory of this one; with cgroup v2 the hierarchy is mounted over it.
mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
for at in "$@"; do
  mkdir -p "$root$at"
  mount --bind "$at/$name" "$root$at"
done

mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
  : >"$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
# systemd's log, which would otherwise go to the machine's kernel log.
: >"$root/dev/kmsg"
mount --bind "$share/log" "$root/dev/kmsg"

mount -t tmpfs -o mode=755 tmpfs "$root/run"
mkdir -p "$root/run/old" "$root/run/share" "$root/run/tmp" "$root/run/systemd/system"
mount --bind "$share" "$root/run/share"
cp "$share"/units/* "$root/run/systemd/system/"
echo 0123456789abcdef0123456789abcdef >"$root/run/machine-id"
if [ -e /etc/machine-id ]; then
  mount --bind "$root/run/machine-id" "$root/etc/machine-id"
fi
