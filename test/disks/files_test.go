package disks

import (
	"path"
	"path/filepath"
	"strings"
)

// file is a kind of files that the node writes.
type file struct {
	// name is a pattern of the path below the state directory; see path.Match. A "/**" at its end is a
	// directory and everything below.
	name string
	// refuses is true for a file without which its process may end with an error that names it, because it protects what
	// other files hold.
	refuses bool
	// ofPods is true for files of which each pod has its own. A pod waits without a word while those hang; the list of
	// workers shows it.
	ofPods bool
	// sampled is true for a file that every life of a node writes and that has been tested in each way. A sample has
	// only these.
	sampled bool
}

// files are all files that the four processes and their supervisor write in a life of the node. A file that is missing
// here fails the test. docs/reference/files.md says what each is for.
func files() []file {
	return []file{
		{name: "configmux-manifests.json", sampled: true},
		{name: "applied/*.json"},
		{name: "applied/*.secret", sampled: true},
		{name: "secrets.key", sampled: true},
		{name: "pleg-told", sampled: true},
		{name: "nodestatus.json", sampled: true},
		{name: "graceful_node_shutdown_state"},
		{name: "evictions.json", sampled: true},
		{name: "syncloop.reserve", sampled: true},
		{name: "resizes/**"},
		{name: "endings/**", sampled: true},
		{name: "probes/**", sampled: true},
		{name: "told-node.json", sampled: true},
		{name: "oom-told.json", sampled: true},
		{name: "claims/**"},
		{name: "persistentvolumes/**"},
		{name: "pki/**"},
		{name: "root-mount"},
		// The directory of all pods, which is listed at the start.
		{name: "root/pods", sampled: true},
		{name: "root/pods/**", refuses: true, ofPods: true},
		{name: "root/image_manager/**"},
		{name: "root/cpu_manager_state"},
		{name: "root/memory_manager_state"},
		{name: "root/dra_manager_state"},
		{name: "root/device-plugins/**"},
		{name: "logs/**", ofPods: true},
		{name: "run/*.pid", sampled: true},
		{name: "*.lock", refuses: true},
	}
}

func (f file) matches(dir, file string) bool {
	name, err := filepath.Rel(dir, file)
	if err != nil {
		return false
	}
	if folder, all := strings.CutSuffix(f.name, "/**"); all {
		return name == folder || strings.HasPrefix(name, folder+"/")
	}
	ok, err := path.Match(f.name, name)
	return ok && err == nil
}
