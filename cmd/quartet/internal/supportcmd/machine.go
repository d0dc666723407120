package supportcmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"sigs.k8s.io/yaml"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/nodeprocess"
)

const (
	// headerField is the field of a KubeletConfiguration with credentials, and urlField that with a URL, which may have
	// some.
	headerField, urlField = "staticPodURLHeader", "staticPodURL"
	// tailSize is the size of the end of a log.
	tailSize = 512 << 10
	// maxListed bounds the list of files of the state directory.
	maxListed = 5000
)

// process is a process of the node; its PID is 0 if it is unknown.
type process struct {
	nodeprocess.Process

	err error
}

// processes returns the processes that hold the locks of the state directory.
func (c *collector) processes() map[layout.Service]process {
	out := map[layout.Service]process{}
	for _, service := range layout.Services() {
		p, err := nodeprocess.Of(c.layout.StateDir(), service)
		out[service] = process{p, err}
	}
	return out
}

// describe returns the command line, and what the kernel says of the process. Its environment is not read.
func (p process) describe() []byte {
	if p.err != nil {
		return []byte(p.err.Error() + "\n")
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s\n", strings.Join(p.Args, "\n  "))
	for _, name := range []string{"status", "limits", "cgroup"} {
		content, err := os.ReadFile(nodeprocess.File(p.PID, name))
		fmt.Fprintf(&out, "\n# %s\n%s", name, content)
		if err != nil {
			fmt.Fprintf(&out, "%v\n", err)
		}
	}
	return out.Bytes()
}

// paths returns the paths that are the values of flags of the processes, each once.
func paths(processes map[layout.Service]process, flags ...string) []string {
	var values []string
	for _, p := range processes {
		values = append(values, p.Paths(flags...)...)
	}
	slices.Sort(values)
	return slices.Compact(values)
}

// configFiles returns the paths of the configurations.
func (c *collector) configFiles(processes map[layout.Service]process) []string {
	if c.config != "" {
		return []string{c.config}
	}
	files := paths(processes, "config")
	if !slices.Contains(files, c.layout.ConfigFile()) {
		files = append(files, c.layout.ConfigFile())
	}
	return files
}

// configurations adds the configurations without credentials.
func (c *collector) configurations(processes map[layout.Service]process) {
	for i, path := range c.configFiles(processes) {
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			content, err = withoutCredentials(content)
		}
		if err != nil {
			content = []byte(err.Error())
		}
		name := "configuration/kubelet.yaml"
		if i > 0 {
			name = fmt.Sprintf("configuration/kubelet-%d.yaml", i+1)
		}
		c.text(name, append([]byte("# "+path+"\n"), content...))
	}
}

// withoutCredentials returns a KubeletConfiguration without the values of headers and the secret parts of a URL.
// Comments are lost, because they may contain anything.
func withoutCredentials(content []byte) ([]byte, error) {
	var document map[string]any
	if err := yaml.Unmarshal(content, &document); err != nil {
		return nil, errors.New("it is not YAML, so that nothing of it is here")
	}
	if headers, ok := document[headerField].(map[string]any); ok {
		for name := range headers {
			headers[name] = removed
		}
	} else if document[headerField] != nil {
		document[headerField] = removed
	}
	if text, ok := document[urlField].(string); ok {
		document[urlField] = removed
		if address, err := url.Parse(text); err == nil {
			address.User, address.RawQuery, address.Fragment = nil, "", ""
			document[urlField] = address.String()
		}
	}
	return yaml.Marshal(document)
}

// health returns what a process says of itself.
func (c *collector) health(ctx context.Context, service layout.Service) []byte {
	var answer fmt.Stringer
	if err := c.ask(ctx, service, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		switch service {
		case layout.PLEG:
			answer, err = lifecyclev1.NewLifecycleServiceClient(conn).GetHealth(ctx, &lifecyclev1.GetHealthRequest{})
		case layout.SyncLoop:
			answer, err = enginev1.NewEngineServiceClient(conn).GetHealth(ctx, &enginev1.GetHealthRequest{})
		case layout.NodeStatus:
			answer, err = nodev1.NewNodeServiceClient(conn).GetHealth(ctx, &nodev1.GetHealthRequest{})
		case layout.ConfigMux:
			answer, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		}
		return err
	}); err != nil {
		return []byte(err.Error() + "\n")
	}
	return []byte(answer.String() + "\n")
}

// logs adds the ends of the logs that are files.
func (c *collector) logs() {
	paths, err := filepath.Glob(filepath.Join(c.layout.Logs(), "*.log"))
	if err != nil || len(paths) == 0 {
		c.text("logs/README.txt", []byte("There are no files in "+c.layout.Logs()+
			". The journal has the logs of units: journalctl -u 'quartet*' -u kubelet\n"))
		return
	}
	for _, path := range paths {
		content, err := tail(path)
		if err != nil {
			content = []byte(err.Error() + "\n")
		}
		c.text("logs/"+filepath.Base(path), content)
	}
}

// tail returns the last lines of a file.
func tail(path string) (content []byte, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	cut := max(0, info.Size()-tailSize)
	content, err = io.ReadAll(io.NewSectionReader(file, cut, tailSize))
	if cut > 0 {
		// The first line has lost its beginning, by which a secret in it would be recognized.
		_, content, _ = bytes.Cut(content, []byte("\n"))
	}
	return content, err
}

// listing returns the names, modes and sizes of the files in the state directory, two levels deep.
func (c *collector) listing() []byte {
	var out bytes.Buffer
	listed := 0
	err := filepath.WalkDir(c.layout.StateDir(), func(path string, entry fs.DirEntry, err error) error {
		name, _ := filepath.Rel(c.layout.StateDir(), path) // the path is within
		if err != nil {
			fmt.Fprintf(&out, "%s: %v\n", name, err)
			return nil
		}
		if listed++; listed > maxListed {
			return fs.SkipAll
		}
		if info, err := entry.Info(); err == nil {
			fmt.Fprintf(&out, "%v %10d %s %s\n", info.Mode(), info.Size(), info.ModTime().UTC().Format(time.RFC3339), name)
		}
		if entry.IsDir() && strings.Count(name, string(filepath.Separator)) >= 1 {
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		fmt.Fprintf(&out, "%v\n", err)
	}
	return out.Bytes()
}
