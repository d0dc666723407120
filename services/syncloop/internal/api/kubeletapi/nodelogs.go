package kubeletapi

import (
	"errors"
	"io/fs"
	"net/http"
	"net/http/pprof"
	"os"
	"strings"
	"syscall"

	"github.com/quartet-node/quartet/internal/telemetry"
)

// nodeLogs answers with the files and listings of the machine's log directory.
func (n *node) nodeLogs(w http.ResponseWriter, r *http.Request) {
	root, err := os.OpenRoot(n.LogDir)
	if errors.Is(err, fs.ErrNotExist) {
		http.Error(w, "this node has no "+n.LogDir, http.StatusNotFound)
		return
	}
	if err != nil {
		n.refuse(w, r, err)
		return
	}
	defer func() {
		if err := root.Close(); err != nil {
			n.Logger.DebugContext(r.Context(), "a directory could not be closed", telemetry.KeyFile, n.LogDir, telemetry.KeyError, err)
		}
	}()
	http.StripPrefix("/logs",
		http.FileServerFS(plainFiles{root})).ServeHTTP(&steady{ResponseWriter: w, to: untilDone(w, n.idle())}, r)
}

// steady writes a response in pieces, each with its own deadline.
type steady struct {
	http.ResponseWriter
	to *flushed
}

// Write implements http.ResponseWriter.
func (s *steady) Write(b []byte) (int, error) { return s.to.Write(b) }

// plainFiles are the regular files and directories below a root. Everything else does not exist for it: reading a pipe
// would block forever, and reading a device can have side effects. A symbolic link is followed if it is relative and
// stays below the root, so that a pod that can write there cannot expose other files of the machine.
type plainFiles struct{ root *os.Root }

// Open implements fs.FS.
func (p plainFiles) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	file, err := p.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		err = &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// profiles answers with profiles of this process.
func (n *node) profiles(w http.ResponseWriter, r *http.Request) {
	switch strings.TrimPrefix(r.URL.Path, "/debug/pprof/") {
	case "profile":
		pprof.Profile(w, r)
	case "symbol":
		pprof.Symbol(w, r)
	case "cmdline":
		pprof.Cmdline(w, r)
	case "trace":
		pprof.Trace(w, r)
	default:
		pprof.Index(w, r)
	}
}
