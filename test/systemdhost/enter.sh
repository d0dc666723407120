# Run by `sh -euc` with the name of its cgroups, the directory that is shared with the test, the script for inside, and the
# mount points of the machine's cgroups. It enters these cgroups, then namespaces of its own.
name=$1 share=$2 inside=$3
shift 3
for at in "$@"; do
  echo $$ >"$at/$name/cgroup.procs"
done
exec unshare --pid --mount --uts --ipc --net --cgroup --fork --kill-child --propagation private \
  sh -euc "$inside" inside "$name" "$share" "$@"
