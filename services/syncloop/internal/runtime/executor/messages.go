package executor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
)

// Limits of termination messages, in bytes and lines: the kubelet's.
const (
	maxMessage     = 4096
	maxLogMessage  = 2048
	maxLogLines    = 80
	maxLogTailRead = 64 << 10 // a part of a line has 16 KiB, and the first one read may be cut
)

// TerminationMessages reads the last words of a pod's ended containers, by container ID: from their file, else, when the
// container failed and its policy says so, from the end of its log. They are for podstatus.Inputs.Messages.
func (m *Manager) TerminationMessages(status *lifecyclev1.PodStatus) map[string]string {
	var messages map[string]string
	for _, c := range status.GetContainers() {
		if !podview.Exited(c) {
			continue
		}
		text, err := m.terminationMessage(status.GetUid(), c)
		if err != nil {
			m.cfg.Logger.Warn("the termination message cannot be read", telemetry.KeyContainerID, c.GetId(), telemetry.KeyError, err)
			text = fmt.Sprintf("Error on reading termination log: %v", err)
		}
		if text == "" {
			continue
		}
		if messages == nil {
			messages = map[string]string{}
		}
		messages[c.GetId()] = text
	}
	return messages
}

func (m *Manager) terminationMessage(uid string, c *lifecyclev1.Container) (string, error) {
	annotations := c.GetAnnotations()
	if annotations[podlabels.TerminationMessagePath] == "" {
		return "", nil
	}
	path := m.terminationFile(uid, c.GetName(), podlabels.RestartOf(annotations, c.GetAttempt()).Count)
	text, err := tail(path, maxMessage)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if len(text) > 0 || c.GetExitCode() == 0 ||
		annotations[podlabels.TerminationMessagePolicy] != string(v1.TerminationMessageFallbackToLogsOnError) || c.GetLogPath() == "" {
		return strings.ToValidUTF8(string(text), "\ufffd"), nil
	}
	lines, err := tail(c.GetLogPath(), maxLogTailRead)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return logText(lines), nil
}

// tail reads the end of a file. What is not a file (a container can put anything at its own path) is not read.
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
	defer func() { _ = file.Close() }() // it is only read
	if info.Size() > limit {
		if _, err := file.Seek(-limit, io.SeekEnd); err != nil {
			return nil, err
		}
	}
	return io.ReadAll(io.LimitReader(file, limit))
}

// logText is what the last lines of a log in the CRI's format say: each is a time, a stream, a tag (F ends a line, P is a
// part of one) and the text.
func logText(log []byte) string {
	lines := bytes.Split(bytes.TrimSuffix(log, []byte("\n")), []byte("\n"))
	if len(lines) > maxLogLines {
		lines = lines[len(lines)-maxLogLines:]
	}
	var b strings.Builder
	for _, line := range lines {
		fields := bytes.SplitN(line, []byte(" "), 4)
		if len(fields) != 4 {
			continue // the first line may have been cut
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
