// Package terminationmessages reads the termination messages of containers: from the file that a container may write,
// or from the end of its log.
package terminationmessages

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
)

// Limits of termination messages in bytes and lines. They are the kubelet's.
const (
	maxMessage     = 4096
	maxLogMessage  = 2048
	maxLogLines    = 80
	maxLogTailRead = 64 << 10 // a part of a line has up to 16 KiB, and the first part that is read may be incomplete
)

// File returns the path of a container's termination message, below the root directory of pods. It is derived from the
// runtime's records of the container, so that any later process finds it.
func File(rootDir, uid, container string, restartCount int) string {
	return filepath.Join(rootDir, "pods", uid, "containers", container, strconv.Itoa(restartCount))
}

// Reader reads termination messages.
type Reader struct {
	// RootDir is the root directory of pods.
	RootDir string
	Logger  *slog.Logger
}

// Read returns the messages of a pod's ended containers, by container ID: from their file or, if the container failed
// and its policy permits it, from the end of its log. It blocks on the disk.
func (r Reader) Read(pod *v1.Pod, containers []*lifecyclev1.Container) map[string]string {
	messages := map[string]string{}
	for _, c := range containers {
		if !podview.Exited(c) {
			continue
		}
		text, err := r.read(string(pod.UID), c)
		if err != nil {
			r.Logger.Warn("cannot read a termination message", telemetry.KeyContainerID, c.GetId(), telemetry.KeyError, err)
			text = fmt.Sprintf("Error on reading termination log: %v", err)
		}
		if text != "" {
			messages[c.GetId()] = text
		}
	}
	return messages
}

func (r Reader) read(uid string, c *lifecyclev1.Container) (string, error) {
	annotations := c.GetAnnotations()
	if annotations[podlabels.TerminationMessagePath] == "" {
		return "", nil
	}
	path := File(r.RootDir, uid, c.GetName(), podlabels.RestartOf(annotations, c.GetAttempt()).Count)
	text, err := tail(path, maxMessage)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	fallback := annotations[podlabels.TerminationMessagePolicy] == string(v1.TerminationMessageFallbackToLogsOnError)
	if len(text) > 0 || c.GetExitCode() == 0 || !fallback || c.GetLogPath() == "" {
		return strings.ToValidUTF8(string(text), "\ufffd"), nil
	}
	lines, err := tail(c.GetLogPath(), maxLogTailRead)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return logText(lines), nil
}

// tail reads the end of a file. It fails for anything but a regular file, because a container can put any kind of file
// at its path.
func tail(path string, limit int64) ([]byte, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // opened only for reading
	if info.Size() > limit {
		if _, err := file.Seek(-limit, io.SeekEnd); err != nil {
			return nil, err
		}
	}
	return io.ReadAll(io.LimitReader(file, limit))
}

// logText returns the text of the last lines of a log in the CRI's format: each line is a time, a stream, a tag (F ends
// a line, P is a part of one) and the text.
func logText(log []byte) string {
	lines := bytes.Split(bytes.TrimSuffix(log, []byte("\n")), []byte("\n"))
	if len(lines) > maxLogLines {
		lines = lines[len(lines)-maxLogLines:]
	}
	var b strings.Builder
	for _, line := range lines {
		fields := bytes.SplitN(line, []byte(" "), 4)
		if len(fields) != 4 {
			continue // the first line may be incomplete
		}
		if _, err := time.Parse(time.RFC3339Nano, string(fields[0])); err != nil {
			continue
		}
		b.Write(fields[3])
		if !bytes.HasPrefix(fields[2], []byte("P")) {
			b.WriteByte('\n')
		}
	}
	text := b.String()
	if len(text) > maxLogMessage {
		text = text[len(text)-maxLogMessage:]
	}
	return strings.ToValidUTF8(text, "\ufffd")
}
