package chaos

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	image     = "quartet.local/hello:1"
	namespace = "chaos"
	// half is an incomplete manifest, as an editor may write it.
	half = "apiVersion: v1\nkind: Pod\nmetadata: {name: "
)

// Names of containers whose program ends by itself, see endsBy.
const (
	failing = "failing"
	first   = "first"
	second  = "second"
	done    = "done"
)

// kind is one sort of pod. Its spec is the text after "spec:" in a manifest; %s is replaced by a different value at
// each change.
type kind struct {
	name, spec string
	// settles is true when the pod becomes Ready or Succeeded by itself.
	settles bool
	// sameUID is true when the manifest has a UID: a changed manifest then is an update of the same pod.
	sameUID bool
}

var kinds = []kind{
	{name: "plain", settles: true, spec: `
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: IMAGE, args: [sleep], env: [{name: VERSION, value: "%s"}]}
`},
	{name: "init", settles: true, spec: `
  terminationGracePeriodSeconds: 1
  initContainers:
  - {name: first, image: IMAGE, args: [init, -after, 300ms]}
  - {name: second, image: IMAGE, args: [init, -after, 100ms]}
  containers:
  - {name: main, image: IMAGE, args: [serve], env: [{name: VERSION, value: "%s"}]}
  - {name: beside, image: IMAGE, args: [sleep]}
`},
	{name: "stubborn", settles: true, spec: `
  terminationGracePeriodSeconds: 2
  containers:
  - {name: main, image: IMAGE, args: [sleep, -ignore-term], env: [{name: VERSION, value: "%s"}]}
`},
	{name: "job", settles: true, spec: `
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - {name: done, image: IMAGE, args: [init, -after, 500ms], env: [{name: VERSION, value: "%s"}]}
`},
	{name: "same", settles: true, sameUID: true, spec: `
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: IMAGE, args: [sleep], env: [{name: VERSION, value: "%s"}]}
  - {name: beside, image: IMAGE, args: [sleep]}
`},
	{name: "crash", spec: `
  terminationGracePeriodSeconds: 1
  containers:
  - {name: failing, image: IMAGE, args: [crash, -after, 200ms], env: [{name: VERSION, value: "%s"}]}
  - {name: beside, image: IMAGE, args: [sleep]}
`},
	{name: "blocked", spec: `
  terminationGracePeriodSeconds: 1
  initContainers:
  - {name: failing, image: IMAGE, args: [crash, -after, 100ms]}
  containers:
  - {name: main, image: IMAGE, args: [sleep], env: [{name: VERSION, value: "%s"}]}
`},
}

// manifests is the directory of the manifests, with their writer.
type manifests struct {
	dir     string
	random  *rand.Rand
	deeds   *deeds
	version int
	// last has the last written kind of each pod.
	last map[int]kind
}

// steady is the prefix of the names of pods that are never changed or harmed.
const steady = "steady"

func isSteady(pod string) bool { return strings.HasPrefix(pod, steady) }

func podName(i int) string {
	if i < 0 {
		return fmt.Sprintf("%s%d", steady, -i)
	}
	return fmt.Sprintf("pod%d", i)
}

// write writes a manifest, mostly by a rename and sometimes in place, as different editors do.
func (m *manifests) write(t *testing.T, i int, content string) {
	t.Helper()
	path := filepath.Join(m.dir, podName(i)+".yaml")
	target := path
	atomic := m.random.IntN(4) > 0
	if atomic {
		target = filepath.Join(m.dir, "."+podName(i)+".yaml")
	}
	m.deeds.noteChange(podName(i))
	if err := os.WriteFile(target, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if !atomic {
		return
	}
	if err := os.Rename(target, path); err != nil {
		t.Fatal(err)
	}
}

func (m *manifests) remove(t *testing.T, i int) {
	t.Helper()
	m.deeds.noteRemoval(podName(i))
	if err := os.Remove(filepath.Join(m.dir, podName(i)+".yaml")); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
}

// pod returns the manifest of a pod, different from any before.
func (m *manifests) pod(i int, k kind) string {
	m.version++
	m.last[i] = k
	spec := fmt.Sprintf(strings.ReplaceAll(k.spec, "IMAGE", image), fmt.Sprint(m.version))
	uid := ""
	if k.sameUID {
		uid = fmt.Sprintf(", uid: the-same-%d", i)
	}
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: %s%s}\nspec:%s", podName(i), namespace, uid, spec)
}

// change makes one random change to one random manifest, and returns a description.
func (m *manifests) change(t *testing.T, count int) string {
	t.Helper()
	i := m.random.IntN(count)
	switch n := m.random.IntN(10); {
	case n < 2:
		m.remove(t, i)
		if last := m.last[i]; last.sameUID && m.random.IntN(2) == 0 {
			m.write(t, i, m.pod(i, last)) // another life of the same pod, while the present one ends
			return "bring back " + podName(i)
		}
		return "remove " + podName(i)
	case n < 3:
		m.write(t, i, half)
		return "break " + podName(i)
	default:
		k := kinds[m.random.IntN(len(kinds))]
		if last, ok := m.last[i]; ok && n < 5 {
			k = last
		}
		m.write(t, i, m.pod(i, k))
		return "make " + podName(i) + " " + k.name
	}
}

// begin writes the pods that are never changed, one of each kind that keeps running and one with a device, and returns
// the kinds by the names of the pods.
func (m *manifests) begin(t *testing.T) map[string]kind {
	t.Helper()
	unchanged := map[string]kind{}
	for i, k := range append(slices.Clone(kinds), withDevice()) {
		if k.settles && k.name != "job" {
			m.write(t, -1-i, m.pod(-1-i, k))
			unchanged[podName(-1-i)] = k
		}
	}
	return unchanged
}

// settle writes the final set of pods, each of which settles by itself. It returns the kinds by the names of the pods.
func (m *manifests) settle(t *testing.T, count int) map[string]kind {
	t.Helper()
	wanted := map[string]kind{}
	for i := range count {
		k := kinds[i%len(kinds)]
		if !k.settles {
			m.remove(t, i)
			continue
		}
		m.write(t, i, m.pod(i, k))
		wanted[podName(i)] = k
	}
	return wanted
}
