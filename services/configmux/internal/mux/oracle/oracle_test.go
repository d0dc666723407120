// Package oracle compares the merge of configmux with the kubelet's own: both get the same random updates of several
// sources, and must have the same output, except for the differences in differences_test.go. It is a module of its own,
// so that the product cannot import the kubelet's code.
package oracle

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"pgregory.net/rapid"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/podset"
)

// checks is the default number of random sequences of events for each mode, which -rapid.checks replaces: about ten
// seconds in total.
const checks = "1000"

func TestMain(m *testing.M) {
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "rapid.checks" })
	if !chosen {
		if err := flag.Set("rapid.checks", checks); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	klog.SetLogger(logr.Discard())
	goleak.VerifyTestMain(m)
}

// mode is a mode of notification, in the words of both.
type mode struct {
	name    string
	kubelet config.PodConfigNotificationMode
	ours    configv1.Mode
}

func modes() []mode {
	return []mode{
		{"incremental", config.PodConfigNotificationIncremental, configv1.Mode_MODE_INCREMENTAL},
		{"snapshot and updates", config.PodConfigNotificationSnapshotAndUpdates, configv1.Mode_MODE_SNAPSHOT_AND_UPDATES},
		{"snapshot", config.PodConfigNotificationSnapshot, configv1.Mode_MODE_SNAPSHOT},
	}
}

// step is one update of one source.
type step struct {
	source string
	// op is None for a SET, else Add, Update, Delete or Remove.
	op   podset.Op
	pods []*v1.Pod
}

func (s step) String() string {
	return fmt.Sprintf("%s of %s: %s", kubeletOp(s.op), s.source, texts(s.pods))
}

// message is a message to a subscriber, in the kubelet's form.
type message struct {
	// op is SET, ADD, UPDATE, DELETE, REMOVE or RECONCILE.
	op     string
	source string
	pods   []*v1.Pod
}

// history has the last version that the kubelet got of each pod that it has, by source.
type history map[string]map[types.UID]*v1.Pod

// take notes what a step gives, of which the kubelet leaves out repeated names.
func (h history) take(s step) {
	if s.op == podset.None || h[s.source] == nil {
		h[s.source] = map[types.UID]*v1.Pod{}
	}
	if s.op == podset.Remove {
		for _, p := range s.pods {
			delete(h[s.source], p.UID)
		}
		return
	}
	kept, _ := podset.Filter(s.pods)
	for _, p := range kept {
		h[s.source][p.UID] = p.DeepCopy()
	}
}

// elsewhere tells whether another source has a pod with that UID.
func (h history) elsewhere(source string, uid types.UID) bool {
	for other, pods := range h {
		if _, has := pods[uid]; has && other != source {
			return true
		}
	}
	return false
}

// rig is a kubelet's merge and this one, side by side.
type rig struct {
	kubelet *kubelet
	ours    *ours
	history history
	allowed []difference
}

// newRig returns a rig with the allowed differences. Tests may leave some out.
func newRig(t fataler, m mode, allowed []difference) *rig {
	return &rig{kubelet: newKubelet(m.kubelet), ours: newOurs(t, m.ours), history: history{}, allowed: allowed}
}

func (r *rig) close() {
	r.kubelet.close()
	r.ours.close()
}

// run gives a step to both, and returns the difference of their outputs; empty when there is none.
func (r *rig) run(s step) string {
	ours, ready := r.ours.take(s)
	given := step{source: s.source, op: s.op, pods: copies(s.pods)}
	for _, d := range r.allowed {
		if d.given != nil {
			d.given(r.history, &given)
		}
	}
	r.history.take(given)
	theirs, seen := r.kubelet.take(given)
	for _, d := range r.allowed {
		if d.said != nil {
			theirs, ours = d.said(theirs, ours)
		}
	}
	diff := cmp.Diff(told(theirs), told(ours))
	if seen != ready {
		diff += fmt.Sprintf("all sources have spoken: %v for the kubelet, %v for us\n", seen, ready)
	}
	return diff
}

func TestTheMergeSaysWhatTheKubeletsSays(t *testing.T) {
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				r := newRig(t, m, differences())
				defer r.close()
				given := drawing{pods: map[types.UID]*v1.Pod{}}
				for i := range rapid.IntRange(1, 25).Draw(t, "steps") {
					s := given.step(t)
					if diff := r.run(s); diff != "" {
						t.Fatalf("step %d, %s:\n(-kubelet +ours)\n%s", i, s, diff)
					}
				}
			})
		})
	}
}

// A difference that no longer exists, or that the harness would hide anyway, must be removed from the list.
func TestEveryListedDifferenceIsOne(t *testing.T) {
	all := differences()
	for i, d := range all {
		without := append(append([]difference{}, all[:i]...), all[i+1:]...)
		for name, steps := range d.examples {
			t.Run(d.name+"/"+name, func(t *testing.T) {
				if diff := replay(t, all, steps); diff != "" {
					t.Errorf("what is said differs by more than the list has (-kubelet +ours):\n%s", diff)
				}
				if replay(t, without, steps) == "" {
					t.Errorf("nothing that is said differs without this in the list, for which it says: %s", d.reason)
				}
			})
		}
		if len(d.examples) == 0 || d.reason == "" {
			t.Errorf("%s has no example, or no reason", d.name)
		}
	}
}

// replay gives some steps to both in the incremental mode, and returns the first way in which what they say differs.
func replay(t *testing.T, allowed []difference, steps []step) string {
	t.Helper()
	r := newRig(t, modes()[0], allowed)
	defer r.close()
	for _, s := range steps {
		if diff := r.run(s); diff != "" {
			return diff
		}
	}
	return ""
}
