package localsource

import (
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

func configMap(name, value string) *apiobject.Object {
	return &apiobject.Object{
		ConfigMap: &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"key": value}},
	}
}

func secret(name, value string) *apiobject.Object {
	return &apiobject.Object{
		Secret: &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"key": value}},
	}
}

func valueOf(o *apiobject.Object) string {
	if o.Secret != nil {
		return string(o.Secret.Data["key"])
	}
	return o.ConfigMap.Data["key"]
}

func (r *rig) applyObject(o *apiobject.Object) podset.Op {
	r.t.Helper()
	applied, err := r.ApplyObject(r.t.Context(), o, false)
	must(r.t, err)
	return applied.Op
}

func objectsOf(reading source.Reading) []string {
	var out []string
	for _, o := range reading.Objects {
		out = append(out, o.String()+"="+valueOf(o.Object))
	}
	slices.Sort(out)
	return out
}

// secretPath returns the path of a secret's file.
func (r *rig) secretPath(name string) string {
	return r.objectPath(apiobject.Key{Kind: apiobject.Secret, Namespace: "default", Name: name})
}

func TestObjectsAreThereAfterARestartSinceTheyWereAppliedFirst(t *testing.T) {
	r := newRig(t)
	r.start()
	began := r.clock.Now()
	ops := []podset.Op{
		r.applyObject(configMap("c", "1")),
		r.applyObject(secret("s", "1")),
		r.applyObject(secret("s", "1")),
	}
	r.clock.Step(time.Hour)
	ops = append(ops, r.applyObject(secret("s", "2")))
	if !slices.Equal(ops, []podset.Op{podset.Add, podset.Add, podset.None, podset.Update}) {
		t.Errorf("operations %v, want %v", ops, []podset.Op{podset.Add, podset.Add, podset.None, podset.Update})
	}
	reading := r.restart()
	if got := objectsOf(reading); !slices.Equal(got, []string{"configmap default/c=1", "secret default/s=2"}) {
		t.Errorf("after a restart: %v", got)
	}
	for _, o := range reading.Objects {
		if !o.CreatedAt.Equal(began) {
			t.Errorf("%s is of %v, want %v", o, o.CreatedAt, began)
		}
	}
	r.stop()
}

func TestAnObjectThatCannotBeIsNotApplied(t *testing.T) {
	r := newRig(t)
	r.start()
	var taken *ObjectTakenError
	if _, err := r.ApplyObject(t.Context(), configMap("theirs", "1"), false); !errors.As(err, &taken) ||
		err.Error() != `the source "file" has the configmap default/theirs, in /m/theirs.yaml: change it there, or take it away there first` {
		t.Errorf("another source's: %v", err)
	}
	for _, name := range []string{"a", "b", "c"} {
		r.applyObject(configMap(name, "1"))
	}
	var full *FullError
	if _, err := r.ApplyObject(t.Context(), configMap("d", "1"), true); !errors.As(err, &full) {
		t.Errorf("one too many: %v", err)
	}
	if op := r.applyObject(configMap("c", "2")); op != podset.Update {
		t.Errorf("a change of one that is there: %v, want %v", op, podset.Update)
	}
	r.stop()
}

// Neither the text of a secret nor its base64 form is in any file, unlike that of a config map.
func TestASecretIsNotInClearOnTheDisk(t *testing.T) {
	r := newRig(t)
	r.start()
	const hidden, plain = "hunter2-hunter2", "fox-and-goose"
	r.applyObject(configMap("c", plain))
	r.applyObject(secret("s", "before"))
	r.applyObject(secret("s", hidden))
	r.stop()
	found := map[string]int{}
	must(t, filepath.WalkDir(filepath.Dir(r.keyFile()), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		for _, text := range []string{hidden, plain} {
			if strings.Contains(string(content), text) ||
				strings.Contains(string(content), base64.StdEncoding.EncodeToString([]byte(text))) {
				found[text]++
			}
		}
		return err
	}))
	if found[hidden] != 0 || found[plain] != 1 {
		t.Errorf("found are %v; want the config map's alone", found)
	}
}

// A damaged secret is set aside and reported; one whose key is missing stays, and is restored with the key.
func TestAProblemOfOneSecretAffectsNoOther(t *testing.T) {
	r := newRig(t)
	r.start()
	for _, name := range []string{"a", "b", "c"} {
		r.applyObject(secret(name, "1"))
	}
	r.stop()
	content, err := os.ReadFile(r.secretPath("a"))
	must(t, err)
	// Another's place, and another's name.
	must(
		t,
		os.WriteFile(r.secretPath("b"), []byte(strings.Replace(string(content), `"name":"a"`, `"name":"b"`, 1)), 0o600),
	)
	must(t, os.WriteFile(r.secretPath("c"), content, 0o600))
	reading := r.start()
	if got := objectsOf(reading); !slices.Equal(got, []string{"secret default/a=1"}) || len(reading.Errors) != 2 {
		t.Errorf("there are %v, errors %v; want one secret, and two errors", got, reading.Errors)
	}
	for _, e := range reading.Errors {
		if !strings.HasSuffix(e.Path, ".secret.broken") ||
			!strings.Contains(e.Message, "it was renamed: apply the secret again, or delete it") {
			t.Errorf("error %+v, want Path ending with %q and Message with %q",
				e, ".secret.broken", "it was renamed: apply the secret again, or delete it")
		}
	}
	// Applying a secret again replaces the file that was set aside, and deleting one removes it.
	if op := r.applyObject(secret("b", "2")); op != podset.Add {
		t.Errorf("applying it anew: %v, want %v", op, podset.Add)
	}
	must(t, r.DeleteObject(t.Context(), apiobject.Key{Kind: apiobject.Secret, Name: "c"}))
	if reading := r.restart(); len(reading.Errors) != 0 {
		t.Errorf("errors that are left: %v", reading.Errors)
	}
	r.stop()

	must(t, os.Rename(r.keyFile(), r.keyFile()+".away"))
	reading = r.start()
	if len(reading.Objects) != 0 || len(reading.Errors) != 2 || reading.Failed ||
		!strings.Contains(reading.Errors[0].Message, "restore the key file from a backup") {
		t.Errorf("without the key: %v, errors %v", objectsOf(reading), reading.Errors)
	}
	must(t, os.Rename(r.keyFile()+".away", r.keyFile()))
	for end := time.Now().Add(patience); !r.clock.HasWaiters(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("the source does not wait for the key")
		}
	}
	r.clock.Step(retryInterval)
	reading = <-r.sink.all
	if got := objectsOf(reading); !slices.Equal(got, []string{"secret default/a=1", "secret default/b=2"}) ||
		len(reading.Errors) != 0 {
		t.Errorf("with the key back: %v, errors %v, want %v and none",
			got, reading.Errors, []string{"secret default/a=1", "secret default/b=2"})
	}
	r.stop()
}

// With an API server, objects that were applied before stay on the disk and are ignored.
func TestWithAnAPIServerAppliedObjectsAreLeftAlone(t *testing.T) {
	r := newRig(t)
	r.start()
	r.applyObject(secret("s", "1"))
	r.stop()
	r.cluster = true
	reading := r.start()
	if len(reading.Objects) != 0 || len(reading.Errors) != 0 {
		t.Errorf("in a cluster: %v, errors %v", objectsOf(reading), reading.Errors)
	}
	r.stop()
	r.cluster = false
	if got := objectsOf(r.start()); !slices.Equal(got, []string{"secret default/s=1"}) {
		t.Errorf("standalone again: %v", got)
	}
	r.stop()
	if files, err := filepath.Glob(filepath.Join(r.dir, "*")); err != nil || len(files) != 1 {
		t.Errorf("files %v, %v, want exactly one", files, err)
	}
}
