package chaos

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	image     = "quartet.local/hello:1"
	namespace = "chaos"
	// half is a manifest that an editor has not finished.
	half = "apiVersion: v1\nkind: Pod\nmetadata: {name: "
)

// kind is one sort of pod. Its spec is what follows "spec:" in a manifest; %s is where a value stands that each change
// makes another one.
type kind struct {
	name, spec string
	// settles is true when the pod becomes Ready or Succeeded by itself.
	settles bool
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
  - {name: main, image: IMAGE, args: [init, -after, 500ms], env: [{name: VERSION, value: "%s"}]}
`},
	{name: "crash", spec: `
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: IMAGE, args: [crash, -after, 200ms], env: [{name: VERSION, value: "%s"}]}
  - {name: beside, image: IMAGE, args: [sleep]}
`},
	{name: "blocked", spec: `
  terminationGracePeriodSeconds: 1
  initContainers:
  - {name: first, image: IMAGE, args: [crash, -after, 100ms]}
  containers:
  - {name: main, image: IMAGE, args: [sleep], env: [{name: VERSION, value: "%s"}]}
`},
}

// manifests is the directory that pods are read from, and who writes it.
type manifests struct {
	dir     string
	random  *rand.Rand
	version int
}

func podName(i int) string { return fmt.Sprintf("pod%d", i) }

// write puts a manifest into its place, by a rename most of the time and in place sometimes, as different editors do.
func (m *manifests) write(t *testing.T, i int, content string) {
	t.Helper()
	path := filepath.Join(m.dir, podName(i)+".yaml")
	target := path
	atomic := m.random.IntN(4) > 0
	if atomic {
		target = filepath.Join(m.dir, "."+podName(i)+".yaml")
	}
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
	if err := os.Remove(filepath.Join(m.dir, podName(i)+".yaml")); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
}

// pod is the manifest of a pod, different from any before.
func (m *manifests) pod(i int, k kind) string {
	m.version++
	spec := fmt.Sprintf(strings.ReplaceAll(k.spec, "IMAGE", image), fmt.Sprint(m.version))
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: %s}\nspec:%s", podName(i), namespace, spec)
}

// change does one random thing to one random manifest, and says what.
func (m *manifests) change(t *testing.T, count int) string {
	t.Helper()
	i := m.random.IntN(count)
	switch n := m.random.IntN(10); {
	case n < 2:
		m.remove(t, i)
		return "remove " + podName(i)
	case n < 3:
		m.write(t, i, half)
		return "break " + podName(i)
	default:
		k := kinds[m.random.IntN(len(kinds))]
		m.write(t, i, m.pod(i, k))
		return "make " + podName(i) + " " + k.name
	}
}

// settle writes the known set that the node has to come to: every pod of it settles by itself. It returns the kinds by
// the names of the pods.
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
