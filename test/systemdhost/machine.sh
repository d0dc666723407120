# Runs between inside.sh and become.sh for a machine that a test drives from outside: it has a host name of its own, writable
# directories, terminals, and units of its own in /etc/systemd/system.
# On the disk, and empty: containers' layers and databases are below it, which do not work on an overlay.
mkdir -p "$share/var/lib" "$share/var/log" "$share/var/tmp"
chmod 1777 "$share/var/tmp"
ln -s /run "$share/var/run"
mount --bind "$share/var" "$root/var"
# The machine's files, with changes in memory that are discarded.
for dir in etc opt root tmp usr; do
  mkdir -p "$root/run/changes/$dir/upper" "$root/run/changes/$dir/work"
  mount -t overlay overlay -o "lowerdir=/$dir,upperdir=$root/run/changes/$dir/upper,workdir=$root/run/changes/$dir/work" "$root/$dir"
done
if [ -e "$root/etc/machine-id" ]; then
  mount --bind "$root/run/machine-id" "$root/etc/machine-id"
fi
echo "$QUARTET_SYSTEMD_HOSTNAME" >"$root/etc/hostname" # systemd reads it
mkdir -p "$root/etc/systemd/system"
mount -t tmpfs -o mode=755 tmpfs "$root/etc/systemd/system"
# There is no journal: the output of a unit is in a file of its name.
mkdir -p "$root/etc/systemd/system/service.d" "$share/logs"
printf '[Service]\nStandardOutput=append:/run/share/logs/%%N.log\nStandardError=inherit\n' >"$root/etc/systemd/system/service.d/log.conf"
mkdir -p "$root/usr/lib/modules" # kube-proxy's pod mounts it, and a machine without modules lacks it
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
ln -s /proc/self/fd "$root/dev/fd"
