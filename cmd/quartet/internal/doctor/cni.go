package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/quartet-node/quartet/internal/machine"
)

// judgeNetwork checks that there is a CNI configuration and that its plugins exist. As in CNI, the first file by name
// is used. advice is the command that restores them; empty if the node does not own them.
func judgeNetwork(facts networkFacts, advice string) []machine.Finding {
	f := machine.Ok("CNI configuration", "")
	file, plugins, err := readCNI(facts.configDir)
	if errors.Is(err, fs.ErrPermission) {
		return []machine.Finding{machine.Unknown(f.Check, err)}
	}
	if err != nil {
		return []machine.Finding{
			f.With(machine.Fault, err.Error(), orElse(advice, "write a CNI configuration (*.conflist) into "+facts.configDir)),
		}
	}
	f.Detail = fmt.Sprintf("%s: %s", file, strings.Join(plugins, ", "))
	b := machine.Ok("CNI plugins", "in %s", strings.Join(facts.binDirs, ", "))
	var missing []string
	for _, plugin := range plugins {
		if !slices.ContainsFunc(facts.binDirs, func(dir string) bool { return isProgram(filepath.Join(dir, plugin)) }) {
			missing = append(missing, plugin)
		}
	}
	if len(missing) > 0 {
		dirs := strings.Join(facts.binDirs, ", ")
		return []machine.Finding{
			f,
			b.With(
				machine.Fault,
				fmt.Sprintf("%s not in %s: no pod gets a network", strings.Join(missing, ", "), dirs),
				orElse(
					advice,
					"install them into "+facts.binDirs[0]+" (github.com/containernetworking/plugins, or the package containernetworking-plugins)",
				),
			),
		}
	}
	return []machine.Finding{f, b}
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// cniPlugin is the part of a CNI configuration that names programs.
type cniPlugin struct {
	Type string `json:"type"`
	IPAM struct {
		Type string `json:"type"`
	} `json:"ipam"`
}

// readCNI returns the first configuration file of a directory and the plugins that it names.
func readCNI(dir string) (file string, plugins []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", nil, err
	}
	for _, e := range entries { // sorted by name
		if slices.Contains([]string{".conflist", ".conf", ".json"}, filepath.Ext(e.Name())) && !e.IsDir() {
			file = filepath.Join(dir, e.Name())
			break
		}
	}
	if file == "" {
		return "", nil, fmt.Errorf("there is none in %s", dir)
	}
	content, err := os.ReadFile(filepath.Clean(file))
	if err != nil {
		return "", nil, err
	}
	var config struct {
		cniPlugin
		Plugins []cniPlugin `json:"plugins"`
	}
	if err := json.Unmarshal(content, &config); err != nil {
		return "", nil, fmt.Errorf("%s: %w", file, err)
	}
	for _, plugin := range append(config.Plugins, config.cniPlugin) {
		for _, name := range []string{plugin.Type, plugin.IPAM.Type} {
			if name != "" && !slices.Contains(plugins, name) {
				plugins = append(plugins, name)
			}
		}
	}
	if len(plugins) == 0 {
		return "", nil, fmt.Errorf("%s names no plugin", file)
	}
	return file, plugins, nil
}
