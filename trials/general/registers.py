import re, subprocess, sys
text = subprocess.run(["c++filt"], input=open(sys.argv[1]).read(), capture_output=True, text=True).stdout
name = None
for line in text.splitlines():
    m = re.search(r"Compiling entry function '([^']*)'|entry function '(.*)' for", line)
    if "Compiling entry function" in line:
        name = line.split("'")[1]
        name = re.sub(r"heed::cuda::(general::)?|\(heed::cuda::Type\)|\(int\)", "", name).split("(")[0]
    if "spill" in line: spill = line.strip()
    if "Used" in line and name:
        print(re.search(r"Used (\d+)", line).group(1), re.sub(r".*frame, ", "", spill), name); name = None
