package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/services/nodestatus/internal/eviction"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodeobject"
)

func TestWhatIsSavedIsLoaded(t *testing.T) {
	dir := t.TempDir()
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.Local)
	want := nodeobject.State{
		Node: &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node-1", CreationTimestamp: metav1.NewTime(at)},
			Status: v1.NodeStatus{Conditions: []v1.NodeCondition{
				{
					Type:               v1.NodeReady,
					Status:             v1.ConditionTrue,
					LastHeartbeatTime:  metav1.NewTime(at),
					LastTransitionTime: metav1.NewTime(at),
				},
			}},
		},
		Eviction: eviction.State{Seen: map[v1.NodeConditionType]time.Time{v1.NodeMemoryPressure: at}},
	}
	if err := Save(&statedir.Writer{}, dir, want); err != nil {
		t.Fatal(err)
	}
	got, err := Load(dir, "node-1", "")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(eviction.State{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var damaged *statedir.DamagedError
	if other, err := Load(dir, "node-2", ""); !errors.As(err, &damaged) || other.Node != nil || damaged.Aside == "" {
		t.Errorf("another node gets %+v, %v, want the file set aside", other, err)
	}
}

// TestAFileOfAnotherMachineIsSetAside, because it was copied with the state directory. An ID that is not known is any.
func TestAFileOfAnotherMachineIsSetAside(t *testing.T) {
	dir := t.TempDir()
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	node.Status.NodeInfo.MachineID = "one"
	if err := Save(&statedir.Writer{}, dir, nodeobject.State{Node: node}); err != nil {
		t.Fatal(err)
	}
	for _, machine := range []string{"", "one", "two"} {
		if got, err := Load(dir, "node-1", machine); (machine == "two") != (err != nil) || (got.Node == nil) != (err != nil) {
			t.Errorf("on the machine %q Load() = %+v, %v, want an error on two alone", machine, got, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, fileName+".damaged")); err != nil {
		t.Error(err)
	}
}

func TestNothingToLoad(t *testing.T) {
	if got, err := Load(t.TempDir(), "node-1", ""); err != nil || got.Node != nil {
		t.Errorf("Load(node-1) = %+v, %v, want no Node", got, err)
	}
}

func TestBrokenFileIsNamed(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, fileName)
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := Load(dir, "node-1", ""); err == nil || !strings.Contains(err.Error(), path) || got.Node != nil {
		t.Errorf("Load(node-1) = %+v, %v, want an error with %q and no Node", got, err, path)
	}
}

func TestSaveNamesWhatFailed(t *testing.T) {
	err := Save(&statedir.Writer{}, filepath.Join(t.TempDir(), "none"), nodeobject.State{Node: &v1.Node{}})
	if err == nil || !strings.Contains(err.Error(), "checkpoint of the node") {
		t.Errorf("Save() error = %v, want an error with %q", err, "checkpoint of the node")
	}
}
