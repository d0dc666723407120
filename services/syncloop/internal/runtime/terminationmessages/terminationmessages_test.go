package terminationmessages

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
)

func TestLogText(t *testing.T) {
	const at = "2026-05-01T12:00:00.000000001Z"
	many := strings.Builder{}
	for i := range 100 {
		fmt.Fprintf(&many, "%s stdout F line %d\n", at, i)
	}
	long := strings.Repeat("x", 16<<10)
	for name, test := range map[string]struct{ log, want string }{
		"empty":                    {"", ""},
		"both streams":             {at + " stdout F a\n" + at + " stderr F b\n", "a\nb\n"},
		"parts of a line":          {at + " stdout P a\n" + at + " stdout P b\n" + at + " stdout F c\n", "abc\n"},
		"the first line is cut":    {"3.0000Z stdout F a\n" + at + " stdout F b\n", "b\n"},
		"an empty line":            {at + " stdout F \n", "\n"},
		"not text":                 {at + " stdout F \xff\n", "\ufffd\n"},
		"no more than its end":     {at + " stdout F a\n" + at + " stdout P " + long + "\n" + at + " stdout F " + long + "\n", strings.Repeat("x", 2047) + "\n"},
		"no more than 80 lines":    {many.String(), strings.Join(strings.SplitAfter(many.String(), "\n")[20:], "")},
		"what is no log of theirs": {"hello\n", ""},
	} {
		test.want = strings.ReplaceAll(test.want, at+" stdout F ", "")
		if got := logText([]byte(test.log)); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

func TestTerminationMessages(t *testing.T) {
	for _, test := range []struct {
		name, file, log string
		policy          v1.TerminationMessagePolicy
		code            int32
		want            string
	}{
		{name: "from the file", file: "bye", log: "log", code: 1, policy: v1.TerminationMessageFallbackToLogsOnError, want: "bye"},
		{name: "the end of the file", file: strings.Repeat("a", 10) + strings.Repeat("b", 4096), want: strings.Repeat("b", 4096)},
		{name: "from the log after a failure", log: "log", code: 1, policy: v1.TerminationMessageFallbackToLogsOnError, want: "log\n"},
		{name: "not from the log after success", log: "log", policy: v1.TerminationMessageFallbackToLogsOnError},
		{name: "not from the log without its policy", log: "log", code: 1, policy: v1.TerminationMessageReadFile},
		{name: "a long last line is not lost", log: strings.Repeat("x", 16<<10), code: 1, policy: v1.TerminationMessageFallbackToLogsOnError,
			want: strings.Repeat("x", 2047) + "\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			reader := Reader{RootDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}
			c := &lifecyclev1.Container{
				Id: "c", Name: "a", State: lifecyclev1.ContainerState_CONTAINER_STATE_EXITED, ExitCode: test.code,
				LogPath: filepath.Join(t.TempDir(), "0.log"),
				Annotations: map[string]string{
					podlabels.TerminationMessagePath: "/dev/termination-log", podlabels.TerminationMessagePolicy: string(test.policy),
				},
			}
			file := File(reader.RootDir, "u", "a", 0)
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(test.file), 0o600); err != nil {
				t.Fatal(err)
			}
			log := "2026-05-01T12:00:00.000000001Z stdout F " + test.log + "\n"
			if err := os.WriteFile(c.LogPath, []byte(log), 0o600); err != nil {
				t.Fatal(err)
			}
			got := reader.Read(&v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}, []*lifecyclev1.Container{c})
			if got["c"] != test.want {
				t.Errorf("got %d bytes %.80q, want %d bytes %.80q", len(got["c"]), got["c"], len(test.want), test.want)
			}
		})
	}
}
