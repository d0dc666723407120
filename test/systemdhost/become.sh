# Follows inside.sh: enters the root and becomes systemd, which starts $unit.
cd "$root"
pivot_root . run/old
umount -l /run/old
exec /lib/systemd/systemd --unit="$unit"
