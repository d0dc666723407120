# Run by `sh -euc` with the name of the run's cgroups, the directory of the run, the script for inside, and the command to run
# there; HIERARCHIES are the mount points of the machine's cgroups. It enters these cgroups, then namespaces of its own, which
# end with it.
name=$1 dir=$2 inside=$3
shift 3
for at in $HIERARCHIES; do
  echo $$ >"$at/$name/cgroup.procs"
done
exec unshare --pid --mount --net --ipc --cgroup --fork --kill-child --propagation private sh -euc "$inside" inside "$name" "$dir" "$@"
