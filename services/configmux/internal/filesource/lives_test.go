package filesource

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// lifeOf returns the life of the pod of a name; empty when there is none.
func lifeOf(reading source.Reading, name string) string {
	for _, p := range reading.Pods {
		if p.Name == name {
			return p.Life
		}
	}
	return ""
}

// eachTarget runs a test with a directory and with a single file as the source's path.
func eachTarget(t *testing.T, test func(t *testing.T, r *rig, path string)) {
	for _, target := range []string{"directory", "file"} {
		t.Run(target, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "a.yaml")
			overwrite(t, path, manifest("a", "i:1"))
			if target == "file" {
				dir = path
			}
			r := start(t, dir)
			r.has(0, "a-node i:1")
			test(t, r, path)
		})
	}
}

func TestRemovedAndMadeAgainIsAnotherLife(t *testing.T) {
	for name, again := range map[string]func(t *testing.T, path string){
		"removed and written": func(t *testing.T, path string) {
			must(t, os.Remove(path))
			overwrite(t, path, manifest("a", "i:1"))
		},
		"removed and renamed into place": func(t *testing.T, path string) {
			must(t, os.Remove(path))
			replace(t, path, manifest("a", "i:1"))
		},
		"moved away and written": func(t *testing.T, path string) {
			must(t, os.Rename(path, filepath.Join(filepath.Dir(path), ".away")))
			overwrite(t, path, manifest("a", "i:1"))
		},
		"moved away and back": func(t *testing.T, path string) {
			away := filepath.Join(filepath.Dir(path), ".away")
			must(t, os.Rename(path, away))
			must(t, os.Rename(away, path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachTarget(t, func(t *testing.T, r *rig, path string) {
				for range 3 {
					// Whether the source notices the missing file or not, the pod has another life afterwards.
					before := lifeOf(last(r.all()), "a-node")
					again(t, path)
					r.until("another life", func(got source.Reading) bool {
						life := lifeOf(got, "a-node")
						return len(got.Errors) == 0 && life != "" && life != before
					})
				}
			})
		})
	}
}

func TestOverwrittenOrReplacedIsTheSameLife(t *testing.T) {
	for name, again := range map[string]func(t *testing.T, path, content string){
		"written in place":     overwrite,
		"replaced by a rename": replace,
		"replaced by a hard link": func(t *testing.T, path, content string) {
			hidden := filepath.Join(filepath.Dir(path), ".new")
			overwrite(t, hidden, content)
			must(t, os.Link(hidden, hidden+"2"))
			must(t, os.Rename(hidden+"2", path))
			must(t, os.Remove(hidden))
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachTarget(t, func(t *testing.T, r *rig, path string) {
				first := lifeOf(last(r.all()), "a-node")
				again(t, path, manifest("a", "i:1"))
				again(t, path, manifest("a", "i:2"))
				got := r.has(0, "a-node i:2")
				if life := lifeOf(got, "a-node"); life != first {
					t.Errorf("life %q, want %q as before", life, first)
				}
			})
		})
	}
}

func TestASwapOfLinksIsTheSameLife(t *testing.T) {
	root := t.TempDir()
	for _, v := range []string{"1", "2"} {
		must(t, os.Mkdir(filepath.Join(root, "..v"+v), 0o700))
		overwrite(t, filepath.Join(root, "..v"+v, "a.yaml"), manifest("a", "i:1"))
		overwrite(t, filepath.Join(root, "..v"+v, "b.yaml"), manifest("b", "i:"+v))
	}
	must(t, os.Symlink("..v1", filepath.Join(root, "..data")))
	for _, name := range []string{"a.yaml", "b.yaml"} {
		must(t, os.Symlink(filepath.Join("..data", name), filepath.Join(root, name)))
	}
	r := start(t, root)
	before := r.has(0, "a-node i:1", "b-node i:1")
	must(t, os.Symlink("..v2", filepath.Join(root, "..tmp")))
	must(t, os.Rename(filepath.Join(root, "..tmp"), filepath.Join(root, "..data")))
	must(t, os.RemoveAll(filepath.Join(root, "..v1")))
	after := r.has(0, "a-node i:1", "b-node i:2")
	for _, name := range []string{"a-node", "b-node"} {
		if lifeOf(before, name) != lifeOf(after, name) {
			t.Errorf("%s has another life", name)
		}
	}
}

// The last valid version keeps running while the new file is invalid. Only a valid file ends it.
func TestTheNewLifeBeginsWhenTheNewFileIsGood(t *testing.T) {
	eachTarget(t, func(t *testing.T, r *rig, path string) {
		first := lifeOf(last(r.all()), "a-node")
		must(t, os.Remove(path))
		replace(t, path, "{")
		bad := r.has(1, "a-node i:1")
		if life := lifeOf(bad, "a-node"); life != first {
			t.Errorf("life %q with a bad file, want %q as before", life, first)
		}
		replace(t, path, manifest("a", "i:1"))
		if life := lifeOf(r.has(0, "a-node i:1"), "a-node"); life == first {
			t.Error("the same life, although the file was removed and made again")
		}
	})
}

// Only the pods of the removed file end.
func TestOtherFilesKeepTheirLives(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	overwrite(t, a, manifest("a", "i:1"))
	overwrite(t, b, manifest("b", "i:1"))
	r := start(t, dir)
	first := r.has(0, "a-node i:1", "b-node i:1")
	must(t, os.Remove(a))
	overwrite(t, a, manifest("a", "i:1"))
	got := r.until("another life", func(got source.Reading) bool {
		life := lifeOf(got, "a-node")
		return life != "" && life != lifeOf(first, "a-node")
	})
	if lifeOf(got, "b-node") != lifeOf(first, "b-node") {
		t.Error("the pod of the other file has another life")
	}
}
