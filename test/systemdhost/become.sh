# Runs after inside.sh: it enters the new root and executes systemd, which starts $unit.
cd "$root"
pivot_root . run/old
umount -l /run/old
exec /lib/systemd/systemd --unit="$unit"
