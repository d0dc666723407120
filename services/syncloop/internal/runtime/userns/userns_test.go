package userns_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/userns"
)

// machine returns fixed answers.
type machine struct {
	noUser, noTool bool
	users, groups  string
	err            error
}

func (m machine) HasUser(string) (bool, error) { return !m.noUser, nil }

func (m machine) Run(_ string, args ...string) (string, error) {
	switch {
	case m.noTool:
		return "", &exec.Error{Name: "getsubids", Err: exec.ErrNotFound}
	case args[0] == "-g":
		return m.groups, m.err
	}
	return m.users, m.err
}

func TestSubordinate(t *testing.T) {
	const line = "0: kubelet 131072 262144\n"
	rest := userns.Range{First: 65536, Length: 1<<32 - 65536}
	for _, test := range []struct {
		name    string
		machine machine
		perPod  uint32
		want    userns.Range
		wantErr string
	}{
		{"no such user", machine{noUser: true}, 65536, rest, ""},
		{"no such program", machine{noTool: true}, 65536, rest, ""},
		{"no such program, more for each pod", machine{noTool: true}, 131072, userns.Range{First: 131072, Length: 1<<32 - 131072}, ""},
		{"as the machine says", machine{users: line, groups: line}, 65536, userns.Range{First: 131072, Length: 262144}, ""},
		{"program fails", machine{err: errors.New("no answer")}, 65536, userns.Range{}, "no answer"},
		{"users are not groups", machine{users: line, groups: "0: kubelet 65536 65536\n"}, 65536, userns.Range{}, "/etc/subgid"},
		{"two ranges", machine{users: line + line, groups: line + line}, 65536, userns.Range{}, "one line"},
		{"no range", machine{}, 65536, userns.Range{}, "one line"},
		{"no multiple", machine{users: "0: kubelet 100000 65536", groups: "0: kubelet 100000 65536"}, 65536, userns.Range{}, "multiple of 65536"},
		{"part of the host's own", machine{users: "0: kubelet 0 65536", groups: "0: kubelet 0 65536"}, 65536, userns.Range{}, "multiple of 65536"},
		{"length is no multiple", machine{users: line, groups: line}, 131072 * 3, userns.Range{}, "multiple of 393216"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := userns.Subordinate(test.machine, test.perPod)
			if got != test.want || (err != nil) != (test.wantErr != "") || err != nil && !strings.Contains(err.Error(), test.wantErr) {
				t.Errorf("got %+v, error %v; want %+v, %q", got, err, test.want, test.wantErr)
			}
		})
	}
}

// pods returns an allocator for a number of pods.
func pods(dir string, count uint32) *userns.Allocator {
	return userns.New(userns.Config{PodsDir: dir, Subordinate: func(perPod uint32) (userns.Range, error) {
		return userns.Range{First: perPod, Length: count * perPod}, nil
	}})
}

func TestNoTwoPodsShareAnIDAndANewProcessFindsThem(t *testing.T) {
	const count = 20
	dir := filepath.Join(t.TempDir(), "pods")
	allocator := pods(dir, count)
	got := make([]containerspec.IDs, count)
	var all sync.WaitGroup
	for i := range count {
		all.Go(func() {
			var err error
			if got[i], err = allocator.Of(types.UID(fmt.Sprint("pod-", i))); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	seen := map[uint32]bool{}
	for _, ids := range got {
		if ids.Length != 65536 || ids.First%65536 != 0 || ids.First == 0 || ids.First > count*65536 || seen[ids.First] {
			t.Fatalf("%+v among %+v, want 65536 IDs from an unused multiple of 65536 above 0", ids, got)
		}
		seen[ids.First] = true
	}
	allocator = pods(dir, count)
	for i := range count {
		if ids, err := allocator.Of(types.UID(fmt.Sprint("pod-", i))); err != nil || ids != got[i] {
			t.Errorf("pod-%d has %+v after a restart, error %v; want %+v", i, ids, err, got[i])
		}
	}
	if _, err := allocator.Of("one-more"); err == nil || !strings.Contains(err.Error(), "more subordinate IDs") {
		t.Errorf("Of(one-more) error = %v, want an error with %q", err, "more subordinate IDs")
	}
	// A pod's IDs are free when its folder has been removed.
	if err := os.RemoveAll(filepath.Join(dir, "pod-7")); err != nil {
		t.Fatal(err)
	}
	if ids, err := allocator.Of("one-more"); err != nil || ids != got[7] {
		t.Errorf("got %+v, error %v; want %+v", ids, err, got[7])
	}
}

func TestTheFileIsTheKubelets(t *testing.T) {
	dir := t.TempDir()
	written := `{"uidMappings":[{"hostId":327680,"containerId":0,"length":65536}],"gidMappings":[{"hostId":327680,"containerId":0,"length":65536}]}`
	path := filepath.Join(dir, "old", "userns")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(written), 0o600); err != nil {
		t.Fatal(err)
	}
	// The only other block, which a kubelet has assigned.
	allocator := userns.New(userns.Config{PodsDir: dir, Subordinate: func(uint32) (userns.Range, error) {
		return userns.Range{First: 327680, Length: 2 * 65536}, nil
	}})
	ids, err := allocator.Of("new")
	if err != nil || ids != (containerspec.IDs{First: 393216, Length: 65536}) {
		t.Fatalf("got %+v, error %v, want %+v", ids, err, containerspec.IDs{First: 393216, Length: 65536})
	}
	text, err := os.ReadFile(filepath.Join(dir, "new", "userns"))
	if want := strings.ReplaceAll(written, "327680", "393216"); err != nil || string(text) != want {
		t.Errorf("the file says %s, error %v; want %s", text, err, want)
	}
	if ids, err := allocator.Of("old"); err != nil || ids.First != 327680 {
		t.Errorf("the kubelet's pod has %+v, error %v, want First 327680", ids, err)
	}
}

func TestABrokenFileGivesNothingAway(t *testing.T) {
	for name, text := range map[string]string{
		"not JSON":       "x",
		"no range":       `{}`,
		"maps the root":  `{"uidMappings":[{"hostId":0,"containerId":0,"length":65536}],"gidMappings":[{"hostId":0,"containerId":0,"length":65536}]}`,
		"users only":     `{"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}]}`,
		"without a root": `{"uidMappings":[{"hostId":65536,"containerId":1,"length":65536}],"gidMappings":[{"hostId":65536,"containerId":1,"length":65536}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "old", "userns")
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, uid := range []types.UID{"old", "new"} { // the block of old is not known: it must not be assigned to new
				if _, err := pods(dir, 9).Of(uid); err == nil || !strings.Contains(err.Error(), path) {
					t.Errorf("%s: error %v, want one that names %s", uid, err, path)
				}
			}
		})
	}
	if _, err := pods(t.TempDir(), 9).Of("../x"); err == nil {
		t.Error("the path of a UID is outside of the folder")
	}
}
