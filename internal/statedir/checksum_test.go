package statedir_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/test/require"
)

// TestADamagedFileDoesNotPassForAGoodOne flips any bit and cuts at any byte of a file with a checksum. The result is
// either reported as damaged, or has the same content.
func TestADamagedFileDoesNotPassForAGoodOne(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file.json")
	rapid.Check(t, func(rt *rapid.T) {
		want := rapid.MapOf(rapid.String(), rapid.String()).Draw(rt, "content")
		delete(want, "writtenBy")
		data, err := json.MarshalIndent(want, "", rapid.SampledFrom([]string{"", "  "}).Draw(rt, "indent"))
		require.NoError(t, err)
		data, err = statedir.WithChecksum(data, "node-1")
		require.NoError(t, err)
		load := func(data []byte) (map[string]string, error) {
			require.NoError(t, os.WriteFile(path, data, 0o600))
			got := map[string]string{}
			return got, statedir.LoadChecked(path, "node-1", &got, nil)
		}
		same := func(got map[string]string) bool {
			a, _ := json.Marshal(got)
			b, _ := json.Marshal(want)
			return string(a) == string(b)
		}
		if got, err := load(data); err != nil || !same(got) {
			rt.Fatalf("the good file %s gives %v, %v", data, got, err)
		}
		if rapid.Bool().Draw(rt, "cut") {
			data = data[:rapid.IntRange(0, len(data)-1).Draw(rt, "at")]
		} else {
			data[rapid.IntRange(0, len(data)-1).Draw(rt, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(rt, "bit")
		}
		got, err := load(data)
		delete(got, "writtenBy")
		var damaged *statedir.DamagedError
		if !errors.As(err, &damaged) && !(err == nil && same(got)) {
			rt.Fatalf("the damaged file %q gives %v, %v, want %v or a DamagedError", data, got, err, want)
		}
	})
}

// TestAFileOfAnotherNodeIsSetAside, and its content is known nevertheless.
func TestAFileOfAnotherNodeIsSetAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file.json")
	data, err := statedir.WithChecksum([]byte(`{"Name": "a"}`), "node-1")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, data, 0o600))
	var content struct{ Name string }
	err = statedir.LoadChecked(path, "node-2", &content, nil)
	var damaged *statedir.DamagedError
	if !errors.As(err, &damaged) || !strings.Contains(err.Error(), `"node-1"`) || content.Name != "a" {
		t.Errorf("LoadChecked() = %v, and the name is %q, want a DamagedError that names the node, and %q", err, content.Name, "a")
	}
}

// TestAVersionWithoutChecksumsReadsAndWritesTheFile has the fields of a file without a checksum count, and an earlier
// version ignore the checksum.
func TestAVersionWithoutChecksumsReadsAndWritesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"Name": "a"}`), 0o600))
	var content struct{ Name string }
	if err := statedir.LoadChecked(path, "node-1", &content, nil); err != nil || content.Name != "a" {
		t.Errorf("LoadChecked() = %v, and the name is %q, want %q", err, content.Name, "a")
	}
	for _, object := range []string{`{}`, `{"Name": "b"}`, "{\n  \"Name\": \"b\"\n}\n"} {
		data, err := statedir.WithChecksum([]byte(object), "node-1")
		require.NoError(t, err)
		if err := json.Unmarshal(data, &content); err != nil || strings.Contains(object, "b") && content.Name != "b" {
			t.Errorf("of %s an earlier version has %+v, %v", data, content, err)
		}
	}
	if _, err := statedir.WithChecksum([]byte(`[]`), "node-1"); err == nil {
		t.Error("a list got a checksum")
	}
}
