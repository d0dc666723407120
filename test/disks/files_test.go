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
}

// files are all files that the four processes and their supervisor write in a life of the node. A file that is missing
// here fails the test. docs/reference/files.md says what each is for.
func files() []file {
	return []file{
		{name: "configmux-manifests.json"},
		{name: "applied/*.json"},
		{name: "applied/*.secret"},
		{name: "secrets.key"},
		{name: "pleg-told"},
		{name: "nodestatus.json"},
		{name: "graceful_node_shutdown_state"},
		{name: "evictions.json"},
		{name: "syncloop.reserve"},
		{name: "resizes/**"},
		{name: "endings/**"},
		{name: "probes/**"},
		{name: "told-node.json"},
		{name: "oom-told.json"},
		{name: "claims/**"},
		{name: "persistentvolumes/**"},
		{name: "pki/**"},
		{name: "root-mount"},
		{name: "root/pods/**"},
		{name: "root/image_manager/**"},
		{name: "root/cpu_manager_state"},
		{name: "root/dra_manager_state"},
		{name: "root/device-plugins/**"},
		{name: "logs/**"},
		{name: "run/*.pid"},
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
